"""Simulated nodes: kwok reports their pods as running, and no container runs.

For tests and measurements with many nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.module_sources import folder_of
from e2e.cluster.process import Argument, binary

LABEL = {"type": "kwok"}
TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
# Connecting to a multicast address fails at once, whereas a client would wait for an answer from
# kwok's usual 10.0.0.0/24.
_POD_ADDRESSES = "239.0.0.1/16"
_STAGES = ("node/fast/node-initialize", "pod/fast/pod-ready", "pod/fast/pod-delete")


def node(name: str, pods: int = 110, taints: Sequence[dict[str, str]] = (TAINT,)) -> dict[str, Any]:
    """The manifest of one, on which `pods` of any size fit; with its taint, only such as tolerate
    `kwok.x-k8s.io/node`.
    """
    capacity = {"cpu": "1k", "memory": "1Ti", "pods": str(pods), "nvidia.com/gpu": "1k"}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **LABEL}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": list(taints)},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def write_config(path: Path) -> Path:
    """kwok's own stages, read from the module that it was built from; without the one that
    completes Jobs at once.
    """
    folder = folder_of("kwok", "sigs.k8s.io/kwok") / "kustomize" / "stage"
    stages = [yaml.safe_load((folder / f"{stage}.yaml").read_text()) for stage in _STAGES]
    head = {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": {"enableCRDs": []}}
    path.write_text(yaml.safe_dump_all([head, *stages]))
    return path


def command(kubeconfig: Path, config: Path, address: str) -> list[Argument]:
    """Manages the nodes with our label and leaves those with a kubelet alone."""
    selector = ",".join(f"{key}={value}" for key, value in LABEL.items())
    return [
        binary("kwok"), "--kubeconfig", kubeconfig, "--config", config, "--manage-nodes-with-label-selector", selector,
        "--manage-all-nodes=false", "--cidr", _POD_ADDRESSES, "--node-ip", address,
    ]  # fmt: skip
