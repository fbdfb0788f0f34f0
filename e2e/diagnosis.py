"""Diagnosis of a failed test: objects, events, logs of every container, ends of kubelets' logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from e2e.provision import SYSTEM, Site

_QUIET = {"kube-system", "kube-public", "kube-node-lease", "default"}
_LINES = 60  # of each log


def diagnose(site: Site) -> str:
    return "\n\n".join(_parts(site))


def _parts(site: Site) -> Iterator[str]:
    yield _said(site, "get", "nodes,pods,trainingjobs", "-A", "-o", "wide")
    yield _said(site, "get", "events", "-A", "--sort-by=.lastTimestamp")
    namespaces = _said(site, "get", "namespaces", "-o", "jsonpath={.items[*].metadata.name}").split()
    for namespace in sorted(set(namespaces) - _QUIET, key=lambda name: name == SYSTEM):
        yield _said(
            site, "-n", namespace, "get", "trainingjobs,datasources", "-o", "jsonpath={range .items[*]}{.status}{end}"
        )
        yield from _logs(site, namespace)
    for log in sorted(site.cluster.state.logs.glob("*.log")):
        yield f"--- {log.name}\n{_tail(log)}"


def _logs(site: Site, namespace: str) -> Iterator[str]:
    try:
        pods = json.loads(site.kubectl("-n", namespace, "get", "pods", "-o", "json"))["items"]
    except RuntimeError as error:
        yield str(error)
        return
    for pod in pods:
        name = pod["metadata"]["name"]
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            words = _said(site, "-n", namespace, "logs", name, "-c", container["name"], f"--tail={_LINES}")
            yield f"--- {namespace}/{name}/{container['name']}\n{words}"


def _said(site: Site, *arguments: str) -> str:
    try:
        return site.kubectl(*arguments)
    except RuntimeError as error:
        return str(error)


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-_LINES:])
