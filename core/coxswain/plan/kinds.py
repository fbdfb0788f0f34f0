"""Layouts whose replicas differ: which are of one kind, share a node, and how fast they are."""

from __future__ import annotations

from coxswain.layout import Layout, Replica
from coxswain.plan.pipelines.simulation import loads

Shape = tuple[tuple[int, int, int], ...]


def shape(replica: Replica) -> Shape:
    """Layer split and tensor degrees. Replicas of equal shape may share a ring."""
    return tuple((stage.start, stage.stop, len(stage.devices)) for stage in replica.stages)


def kinds_of(layout: Layout) -> list[int]:
    """Numbers the kind of every replica, in the order of their first ones."""
    known: dict[Shape, int] = {}
    return [known.setdefault(shape(replica), len(known)) for replica in layout.replicas]


def rates_of(layout: Layout, loss: float) -> list[float]:
    """How many times faster than one device each replica works through tasks: as its slowest stage does.

    `loss`: what the last stage does besides its layers, in layers.
    """
    return [1 / max(loads(replica, loss)) for replica in layout.replicas]


def nodes_of(layout: Layout) -> list[int]:
    """Numbers the node of every replica: replicas share one if each of their stages is on the same trainers.

    A trainer is a pod on one node. The order is that of the first replicas.
    """
    known: dict[tuple[tuple[int, ...], ...], int] = {}
    homes = [tuple(tuple(sorted({d.trainer for d in stage.devices})) for stage in r.stages) for r in layout.replicas]
    return [known.setdefault(home, len(known)) for home in homes]
