"""The replicas' loads while rings are placed, by nodes: which members are free first for a ring of a given degree.

A slow replica makes the whole ring slow. So replicas are compared by load plus handicap: the time by which a ring would end
later on them than on a replica of the usual speed. With equal speeds there is none, and nodes are kept in order as they fill.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import Floats
from coxswain.plan.problem import Problem

Ints = NDArray[np.int64]


class ReplicaLoads:
    """Loads of replicas of equal speed, one row per node; a short last node is filled up with inf."""

    def __init__(self, problem: Problem) -> None:
        self.size = min(problem.node_size, problem.replicas)
        self.usual = float(np.median(problem.speeds))
        nodes = -(-problem.replicas // self.size)
        self.loads = np.zeros(nodes * self.size)
        self.loads[problem.replicas :] = np.inf
        self.rows = self.loads.reshape(nodes, self.size)
        # ordered[d - 1, n]: when d replicas of node n are free
        self.ordered = np.ascontiguousarray(np.sort(self.rows, axis=1).T)

    def choose(self, degree: int, seconds: float) -> Ints:
        """Members for a ring of so many seconds at speed 1: within one node where it fits, else over whole nodes."""
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
        self.ordered[:, nodes] = np.sort(self.rows[nodes], axis=1).T

    def end(self, members: Ints, seconds: float) -> float:
        """When a ring of so many seconds at speed 1 would end on these members."""
        return float(self.loads[members].max()) + seconds / self.usual

    def first_free(self) -> float:
        return float(self.ordered[0].min())

    def starts(self, seconds: float) -> tuple[Floats, Floats]:
        """The earliest start of a ring within a node, by degree 1, 2, ..., and of one on 1, 2, ... whole nodes."""
        return self.ordered.min(axis=1), np.sort(self.ordered[-1])


class UnevenReplicaLoads(ReplicaLoads):
    """Loads of replicas of different speeds."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.slowness = np.zeros_like(self.loads)
        self.slowness[: problem.replicas] = 1 / problem.speeds - 1 / self.usual

    def _keys(self, seconds: float) -> tuple[Floats, Floats]:
        keys = (self.loads + self.slowness * seconds).reshape(self.rows.shape)
        return keys, np.sort(keys, axis=1).T

    def choose(self, degree: int, seconds: float) -> Ints:
        keys, ordered = self._keys(seconds)
        if degree <= self.size:
            near = _of_node(keys, int(ordered[degree - 1].argmin()), degree)
        else:
            near = _of_nodes(keys, ordered, degree)
        loose = np.sort(_earliest(keys.reshape(-1), degree))
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


WORTH = 0.98  # members strewn over nodes must end a ring this much sooner


def replica_loads(problem: Problem) -> ReplicaLoads:
    even = bool((problem.speeds == problem.speeds[0]).all())
    return ReplicaLoads(problem) if even else UnevenReplicaLoads(problem)


def _of_node(keys: Floats, node: int, degree: int) -> Ints:
    """Members of a node for the earliest start, in order of their numbers."""
    members: Ints = np.sort(_earliest(keys[node], degree)) + node * keys.shape[1]
    return members


def _earliest(keys: Floats, count: int) -> Ints:
    """Which `count` are free first; of several choices the one that leaves the least waiting behind it.

    The last to be free sets the start, so whoever is free just as late costs nothing and saves an earlier one.
    """
    order = keys.argsort(kind="stable")
    stop = int(np.searchsorted(keys[order], keys[order[count - 1]], side="right"))
    return order[stop - count : stop]


def _of_nodes(keys: Floats, ordered: Floats, degree: int) -> Ints:
    """Whole nodes that are free first, the remainder from one more; any replicas where whole nodes do not suffice."""
    size = keys.shape[1]
    whole, rest = divmod(degree, size)
    full = _earliest(ordered[-1], whole)
    members: Ints = (full[:, None] * size + np.arange(size)).reshape(-1)
    if rest:
        others = ordered[rest - 1].copy()
        others[full] = np.inf
        members = np.concatenate([members, _of_node(keys, int(others.argmin()), rest)])
    flat, members = keys.reshape(-1), np.sort(members)
    if members.size < degree or not np.isfinite(flat[members]).all() or (rest and np.isinf(others.min())):
        members = np.sort(_earliest(flat, degree))
    return members
