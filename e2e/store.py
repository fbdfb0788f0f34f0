"""An S3 server inside the cluster, at the address that examples/kubernetes.yaml names, with the
example corpus in it.

It runs in a pod of node 0 (tests lose node 1), over a folder of this machine: a bucket is a folder,
an object a file.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.cluster import Cluster
from e2e.cluster.process import binary

NAMESPACE, PORT = "demo", 9000
ACCESS_KEY, SECRET_KEY = "demo", "demo-secret"
_USER = 65532
_PROGRAM, _DATA = "/opt/versitygw", "/data"
_LABELS = {"app.kubernetes.io/name": "s3"}


def start_store(cluster: Cluster, folder: Path, corpus: Path, image: str) -> None:
    """Returns when it answers.

    `folder` holds the buckets `corpus` and `runs`; `image` need have nothing in it for this.
    """
    _fill(folder, corpus)
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(_manifests(folder, image, cluster.plan.nodes[0])))
    _until_ready(cluster)


def set_secret_key(cluster: Cluster, key: str) -> None:
    """Changes the server's secret key, which restarts it; returns when it answers."""
    cluster.kubectl("-n", NAMESPACE, "set", "env", "deployment/s3", f"ROOT_SECRET_KEY={key}")
    _until_ready(cluster)


def _until_ready(cluster: Cluster) -> None:
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", "deployment/s3", "--timeout=100s")


def _fill(folder: Path, corpus: Path) -> None:
    if not (folder / "corpus").exists():
        shutil.copytree(corpus, folder / "corpus")
    (folder / "runs").mkdir(exist_ok=True)
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, _USER, _USER)


def _manifests(folder: Path, image: str, node: str) -> list[dict[str, Any]]:
    meta = {"name": "s3", "namespace": NAMESPACE, "labels": _LABELS}
    pod = {
        "nodeName": node,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER},
        "containers": [_container(image)],
        "volumes": [
            {"name": "program", "hostPath": {"path": str(binary("versitygw")), "type": "File"}},
            {"name": "data", "hostPath": {"path": str(folder), "type": "Directory"}},
        ],
    }
    deployment = {
        "selector": {"matchLabels": _LABELS},
        "strategy": {"type": "Recreate"},
        "template": {"metadata": {"labels": _LABELS}, "spec": pod},
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"selector": _LABELS, "ports": [{"port": PORT}]},
        },
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": deployment},
    ]


def _container(image: str) -> dict[str, Any]:
    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    return {
        "name": "s3",
        "image": image,
        "command": [_PROGRAM, "--quiet", "--port", f":{PORT}", "--region", "us-east-1", "posix", _DATA],
        "env": [{"name": name, "value": value} for name, value in keys.items()],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "program", "mountPath": _PROGRAM, "readOnly": True},
            {"name": "data", "mountPath": _DATA},
        ],
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True},
    }
