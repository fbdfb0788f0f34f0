"""The cluster's DNS: CoreDNS as a server beside the control plane, behind the usual Service
address.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from e2e.cluster.plan import CLUSTER_DNS


def corefile(address: str, kubeconfig: Path) -> str:
    """Names outside the cluster do not exist: tests reach nothing else."""
    return f"""cluster.local:53 in-addr.arpa:53 {{
    bind {address}
    errors
    kubernetes {{
        kubeconfig {kubeconfig} coxswain
        ttl 5
    }}
}}
.:53 {{
    bind {address}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def manifests(address: str) -> list[dict[str, Any]]:
    """(a Service without a selector, and where it leads)."""
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": CLUSTER_DNS, "ports": ports},
    }
    labels = {"kubernetes.io/service-name": "kube-dns"}
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": ports,
    }
    return [service, slice_]
