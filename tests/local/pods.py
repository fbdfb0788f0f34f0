"""Builders of small pods for the local cluster's tests: containers are `python -c` programs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coxswain_operator.local import LocalCluster
from coxswain_operator.views import Manifest


def container(program: str, name: str = "main", **spec: Any) -> Manifest:
    return {"name": name, "command": ["python", "-c"], "args": [program], **spec}


def pod(*containers: Manifest, name: str = "p", sidecars: tuple[Manifest, ...] = (), **spec: Any) -> Manifest:
    """restartPolicy Never and a grace period of one second, unless said otherwise."""
    inits = [{**c, "restartPolicy": "Always"} for c in sidecars]
    base = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "initContainers": inits,
        "containers": [*containers],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": base | spec}


async def until(
    cluster: LocalCluster, condition: Callable[[Manifest], Any], name: str = "p", deadline: float = 20
) -> Manifest:
    """The pod once `condition` holds of it."""
    last: Manifest = {}
    try:
        async with asyncio.timeout(deadline):
            async for change in cluster.watch("Pod", "default"):
                last = change.object
                if last["metadata"]["name"] == name and condition(last):
                    return last
    except TimeoutError:
        pass
    raise AssertionError(f"not within {deadline} s; the pod's last state: {last}")


async def run_to_end(cluster: LocalCluster, manifest: Manifest) -> Manifest:
    """The status of a pod that has ended."""
    await cluster.create(manifest)
    ended = await until(
        cluster, lambda p: p["status"]["phase"] in ("Succeeded", "Failed"), manifest["metadata"]["name"]
    )
    return ended["status"]


def terminated(status: Manifest, index: int = 0) -> Manifest:
    return status["containerStatuses"][index]["state"]["terminated"]


async def until_text(path: Path, text: str, deadline: float = 20) -> None:
    """A container's log holds `text`: the only sign that its program got so far."""
    async with asyncio.timeout(deadline):
        while not (path.exists() and text in path.read_text()):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)


async def until_gone(cluster: LocalCluster, kind: str = "Pod") -> None:
    async for change in cluster.watch(kind, "default"):
        if change.kind == "DELETED":
            return
