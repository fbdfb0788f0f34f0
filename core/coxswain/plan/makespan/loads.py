"""Keeps the replicas' loads by node and finds the members that are free first for a ring.

A slow replica makes the whole ring slow. Replicas are therefore compared by load plus handicap: how
much later a ring would end on them than on a replica of the usual speed. Equal speeds have no
handicap, and nodes stay sorted as they fill.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import Floats
from coxswain.plan.problem import Problem

Ints = NDArray[np.int64]


class ReplicaLoads:
    """Loads of replicas of equal speed, one row a node; a short last node is padded with inf."""

    def __init__(self, problem: Problem) -> None:
        self.size = min(problem.node_size, problem.replicas)
        self.usual = float(np.median(problem.speeds))
        nodes = -(-problem.replicas // self.size)
        self.loads = np.zeros(nodes * self.size)
        self.loads[problem.replicas :] = np.inf
        self.rows = self.loads.reshape(nodes, self.size)
        # ordered[d - 1, n]: the time at which d replicas of node n are free
        self.ordered = np.ascontiguousarray(np.sort(self.rows).T)

    def choose(self, degree: int, seconds: float) -> Ints:
        """Chooses members for a ring of so many seconds at speed 1: in one node, else whole nodes."""
        if degree <= self.size:
            return _of_node(self.rows, int(self.ordered[degree - 1].argmin()), degree)
        return _of_nodes(self.rows, self.ordered, degree)

    def occupy(self, members: Ints, until: float) -> None:
        self.loads[members] = until
        if members.size <= self.size:
            for node in {int(members[0]) // self.size, int(members[-1]) // self.size}:
                self.ordered[:, node] = np.sort(self.rows[node])
            return
        nodes = np.flatnonzero(np.bincount(members // self.size))
        self.ordered[:, nodes] = np.sort(self.rows[nodes]).T

    def end(self, members: Ints, seconds: float) -> float:
        """Returns when a ring of so many seconds at speed 1 ends on these members."""
        return float(self.loads[members].max()) + seconds / self.usual

    def first_free(self) -> float:
        return float(self.ordered[0].min())

    def starts(self, seconds: float) -> tuple[Floats, Floats]:
        """Returns the earliest starts of rings of 1, 2, ... members of a node, and of whole nodes."""
        return self.ordered.min(axis=1), np.sort(self.ordered[-1])


class UnevenReplicaLoads(ReplicaLoads):
    """Loads of replicas of different speeds."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.slowness = np.zeros_like(self.loads)
        self.slowness[: problem.replicas] = 1 / problem.speeds - 1 / self.usual

    def _keys(self, seconds: float) -> tuple[Floats, Floats]:
        keys = (self.loads + self.slowness * seconds).reshape(self.rows.shape)
        return keys, np.sort(keys).T

    def choose(self, degree: int, seconds: float) -> Ints:
        keys, ordered = self._keys(seconds)
        if degree <= self.size:
            near = _of_node(keys, int(ordered[degree - 1].argmin()), degree)
        else:
            near = _of_nodes(keys, ordered, degree)
        loose = np.sort(_earliest(keys.ravel(), degree))
        worth = degree > self.size and self.end(loose, seconds) < WORTH * self.end(near, seconds)
        return loose if worth else near

    def occupy(self, members: Ints, until: float) -> None:
        self.loads[members] = until

    def first_free(self) -> float:
        return float(self.loads.min())

    def end(self, members: Ints, seconds: float) -> float:
        return float(self.loads[members].max()) + seconds * (1 / self.usual + float(self.slowness[members].max()))

    def starts(self, seconds: float) -> tuple[Floats, Floats]:
        _, ordered = self._keys(seconds)
        return ordered.min(axis=1), np.sort(ordered[-1])


WORTH = 0.98  # members spread over nodes must end a ring this much sooner


def replica_loads(problem: Problem) -> ReplicaLoads:
    even = bool((problem.speeds == problem.speeds[0]).all())
    return ReplicaLoads(problem) if even else UnevenReplicaLoads(problem)


def _of_node(keys: Floats, node: int, degree: int) -> Ints:
    """Chooses the members of a node for the earliest start, in order of their numbers."""
    members: Ints = np.sort(_earliest(keys[node], degree)) + node * keys.shape[1]
    return members


def _earliest(keys: Floats, count: int) -> Ints:
    """Chooses the `count` that are free first; of several choices, the one that waits least.

    The last to be free sets the start: another that is free as late costs nothing and leaves an
    earlier one to other rings.
    """
    order = keys.argsort(kind="stable")
    stop = int(np.searchsorted(keys[order], keys[order[count - 1]], side="right"))
    return order[stop - count : stop]


def _of_nodes(keys: Floats, ordered: Floats, degree: int) -> Ints:
    """Chooses the whole nodes that are free first, and the rest from one more node.

    Where no other node has so many, any replicas.
    """
    size = keys.shape[1]
    whole, rest = divmod(degree, size)
    full = _earliest(ordered[-1], whole)
    members: Ints = (full[:, None] * size + np.arange(size)).ravel()
    if rest:
        others = ordered[rest - 1].copy()
        others[full] = np.inf
        if np.isinf(others.min()):
            return np.sort(_earliest(keys.ravel(), degree))
        members = np.concatenate([members, _of_node(keys, int(others.argmin()), rest)])
    return np.sort(members)
