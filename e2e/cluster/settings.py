"""The settings of a node's programs: the kubelet's, kube-proxy's, containerd's and the pod network's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.plan import CLUSTER_DNS, Plan

PAUSE_IMAGE = "coxswain.test/pause:1"
# Where distributions put the network plugins; the first that exists is taken.
CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")


def kubelet(plan: Plan, node: str, authority: Path, name_servers: Path) -> str:
    """`authority`: of the API server's client certificate, which logs and exec need."""
    content: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "address": plan.node_address(node),
        "healthzBindAddress": "127.0.0.1",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{plan.cgroup_of(node)}",
        "clusterDNS": [CLUSTER_DNS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "failCgroupV1": False,
        "failSwapOn": False,
        # Its file system statistics fail for disks that are not in /proc/partitions of this mount namespace.
        "localStorageCapacityIsolation": False,
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 12,
        "oomScoreAdj": 0,
        "resolvConf": str(name_servers),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "shutdownGracePeriod": "0s",
        # Images come by import: a removed one could not be pulled again.
        "imageGCHighThresholdPercent": 100,
        "imageMinimumGCAge": "24h",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "serializeImagePulls": False,
    }  # fmt: skip
    return yaml.safe_dump(content)


def kube_proxy(plan: Plan, node: str, kubeconfig: Path) -> str:
    """Limits of connection tracking belong to the whole machine: zero leaves them alone."""
    content: dict[str, Any] = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "bindAddress": plan.node_address(node),
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": plan.pods,
        "hostnameOverride": node,
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "iptables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
    }
    return yaml.safe_dump(content)


def containerd(networks: Path, plugins: Path) -> str:
    """`networks`: the folder of the pod network's file. `plugins`: that of the network plugins."""
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Without CAP_SYS_RESOURCE a sandbox whose score is to fall below ours cannot be started.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{networks}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    discard_unpacked_layers = true
"""


def plugins_folder() -> Path:
    """Raises FileNotFoundError when there is none (preflight tells sooner and better)."""
    found = next((Path(folder) for folder in CNI_FOLDERS if (Path(folder) / "ptp").exists()), None)
    if found is None:
        raise FileNotFoundError(f"no network plugins in any of {', '.join(CNI_FOLDERS)}: install them")
    return found


def pod_network(plan: Plan, node: str) -> dict[str, Any]:
    """Every pod has a link of its own to the node (`ptp`): traffic to a neighbour is routed too, so Service rules see it."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": plan.pods_of(node)}]], "routes": [{"dst": "0.0.0.0/0"}]}
    pair = {"type": "ptp", "ipMasq": False, "ipam": addresses, "mtu": 1500}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [pair, ports]}
