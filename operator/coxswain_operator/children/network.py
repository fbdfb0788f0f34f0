"""A job's Service, NetworkPolicy and PodDisruptionBudget."""

from __future__ import annotations

from typing import Any

from coxswain.config import JobConfig
from coxswain.names import (
    LABEL_ATTEMPT,
    LABEL_JOB_UID,
    LABEL_ROLE,
    PORT_AGENT_HTTP,
    PORT_CONSTRUCTOR_HTTP,
    PORT_COORDINATOR,
    PORT_LOADER,
    PORT_LOADER_HTTP,
)
from coxswain_operator.children.common import child, selector
from coxswain_operator.children.pods import template_of
from coxswain_operator.settings import Settings
from coxswain_operator.views import Manifest

METRICS_PORTS = (PORT_COORDINATOR, PORT_LOADER_HTTP, PORT_CONSTRUCTOR_HTTP, PORT_AGENT_HTTP)


def service(job: Manifest) -> Manifest:
    """Headless: gives the coordinator its host name, also before it is ready.

    All other pods are reached by their addresses: selecting thousands of pods would rewrite the
    EndpointSlices, and send them to every node, at every change.
    """
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {LABEL_JOB_UID: job["metadata"]["uid"], LABEL_ROLE: "coordinator"},
        "ports": [{"name": "coordinator", "port": PORT_COORDINATOR}],
    }
    return child(job, "v1", "Service", job["metadata"]["name"], {"spec": spec})


def network_policy(job: Manifest, settings: Settings) -> Manifest:
    """Admits the job's own pods, the operator to the coordinator, and an enabled Prometheus to metrics.

    Trainers on their nodes' network call from the nodes' addresses, which no selector of pods admits: the ports that they call
    are open then, and ask for the job's token.
    """
    ingress = [{"from": [{"podSelector": selector(job)}]}, _from(settings.operator_namespace, (PORT_COORDINATOR,))]
    if settings.prometheus_namespace:
        ingress.append(_from(settings.prometheus_namespace, METRICS_PORTS))
    if _is_on_nodes_network(job):
        ingress.append({"ports": _ports((PORT_COORDINATOR, PORT_LOADER))})
    spec = {"podSelector": selector(job), "policyTypes": ["Ingress"], "ingress": ingress}
    return child(job, "networking.k8s.io/v1", "NetworkPolicy", job["metadata"]["name"], {"spec": spec})


def _from(namespace: str, ports: tuple[int, ...]) -> dict[str, Any]:
    return {
        "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}],
        "ports": _ports(ports),
    }


def _ports(ports: tuple[int, ...]) -> list[dict[str, Any]]:
    return [{"port": port, "protocol": "TCP"} for port in ports]


def _is_on_nodes_network(job: Manifest) -> bool:
    return bool(template_of(job, "trainer")[1].get("hostNetwork"))


def disruption_budget(job: Manifest, config: JobConfig, attempt: int, trainers: int) -> Manifest:
    """Allows one voluntary disruption of this attempt at a time: a drain moves a job pod by pod."""
    labels = {**selector(job)["matchLabels"], LABEL_ATTEMPT: str(attempt)}
    spec = {
        "minAvailable": trainers + config.loaders,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",  # a pod that does not work must not block a drain
        "selector": {"matchLabels": labels},
    }
    return child(job, "policy/v1", "PodDisruptionBudget", job["metadata"]["name"], {"spec": spec})
