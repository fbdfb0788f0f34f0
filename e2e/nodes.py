"""Drains, kills and disconnects nodes, and restores them after a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.namespaces import run
from e2e.cluster.node import Node
from e2e.cluster.process import binary
from e2e.provision import Site


@contextmanager
def only(site: Site, node: Node) -> Iterator[None]:
    """Keeps new pods off all other nodes within the block."""
    others = [other.name for other in site.cluster.nodes if other.name != node.name]
    site.kubectl("cordon", *others)
    try:
        yield
    finally:
        site.kubectl("uncordon", *others)


def drain(site: Site, node: Node) -> None:
    """Returns when the last pod has moved; a PodDisruptionBudget makes that take its time."""
    flags = ["--ignore-daemonsets", "--delete-emptydir-data", "--timeout=400s"]
    run([binary("kubectl"), "--kubeconfig", site.cluster.kubeconfig, "drain", node.name, *flags], deadline=420)


def give_back(site: Site, node: Node) -> None:
    """Restores a node: running, connected, Ready and schedulable."""
    if not node.alive:
        node.start()
    node.connect()
    site.kubectl("wait", "--for=condition=Ready", f"node/{node.name}", "--timeout=100s")
    site.kubectl("uncordon", node.name)
