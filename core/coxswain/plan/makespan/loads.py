"""Keeps the replicas' loads by node and finds the members that are free first for a ring.

A slow replica makes the whole ring slow. Replicas are therefore compared by load plus handicap: how
much later a ring would end on them than on a replica of the usual speed. Equal speeds have no
handicap, and nodes stay sorted as they fill.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import Floats
from coxswain.plan.problem import Problem

Ints = NDArray[np.int64]


class Starts(NamedTuple):
    """The earliest start of a ring of each degree: within a node, and of whole nodes."""

    degrees: Ints
    seconds: Floats


class ReplicaLoads:
    """Loads of replicas of equal speed, one row a node; nodes smaller than the largest are padded with inf."""

    def __init__(self, problem: Problem) -> None:
        self.size = min(problem.node_size, problem.replicas)
        self.usual = float(np.median(problem.speeds))
        self.counts = np.bincount(problem.nodes)
        order = np.argsort(problem.nodes, kind="stable")
        places = np.arange(problem.replicas) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
        self.slots = np.empty_like(order)  # of each replica
        self.slots[order] = problem.nodes[order] * self.size + places
        self.replicas = np.zeros(self.counts.size * self.size, dtype=np.int64)  # of each slot
        self.replicas[self.slots] = np.arange(problem.replicas)
        self.loads = np.full(self.replicas.size, np.inf)
        self.loads[self.slots] = 0.0
        self.rows = self.loads.reshape(self.counts.size, self.size)
        # ordered[d - 1, n]: the time at which d replicas of node n are free
        self.ordered = np.ascontiguousarray(np.sort(self.rows).T)

    def choose(self, degree: int, seconds: float) -> Ints:
        """Chooses members for a ring of so many seconds at speed 1: in one node, else whole nodes. Node by node."""
        return self.replicas[self._slots_for(degree, seconds)]

    def _slots_for(self, degree: int, seconds: float) -> Ints:
        if degree <= self.size:
            return _of_node(self.rows, int(self.ordered[degree - 1].argmin()), degree)
        return _of_nodes(self.rows, self.ordered, self.counts, degree)

    def of(self, members: Ints) -> Floats:
        """Returns when these replicas are free."""
        return self.loads[self.slots[members]]

    def occupy(self, members: Ints, until: float) -> None:
        slots = self.slots[members]
        self.loads[slots] = until
        if slots.size <= self.size:
            for node in {int(slots[0]) // self.size, int(slots[-1]) // self.size}:
                self.ordered[:, node] = np.sort(self.rows[node])
            return
        nodes = np.flatnonzero(np.bincount(slots // self.size))
        self.ordered[:, nodes] = np.sort(self.rows[nodes]).T

    def end(self, members: Ints, seconds: float) -> float:
        """Returns when a ring of so many seconds at speed 1 ends on these members."""
        return float(self.of(members).max()) + seconds / self.usual

    def first_free(self) -> float:
        return float(self.ordered[0].min())

    def starts(self, seconds: float) -> Starts:
        """Returns the earliest starts of rings of 1, 2, ... members of a node, and of two or more whole nodes."""
        return _starts(self.ordered, self.counts)


class UnevenReplicaLoads(ReplicaLoads):
    """Loads of replicas of different speeds."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.slowness = np.zeros_like(self.loads)
        self.slowness[self.slots] = 1 / problem.speeds - 1 / self.usual

    def _keys(self, seconds: float) -> tuple[Floats, Floats]:
        keys = (self.loads + self.slowness * seconds).reshape(self.rows.shape)
        return keys, np.sort(keys).T

    def _slots_for(self, degree: int, seconds: float) -> Ints:
        keys, ordered = self._keys(seconds)
        if degree <= self.size:
            near = _of_node(keys, int(ordered[degree - 1].argmin()), degree)
        else:
            near = _of_nodes(keys, ordered, self.counts, degree)
        loose = np.sort(_earliest(keys.ravel(), degree))
        worth = degree > self.size and self._end(loose, seconds) < WORTH * self._end(near, seconds)
        return loose if worth else near

    def occupy(self, members: Ints, until: float) -> None:
        self.loads[self.slots[members]] = until

    def first_free(self) -> float:
        return float(self.loads.min())

    def end(self, members: Ints, seconds: float) -> float:
        return self._end(self.slots[members], seconds)

    def _end(self, slots: Ints, seconds: float) -> float:
        return float(self.loads[slots].max()) + seconds * (1 / self.usual + float(self.slowness[slots].max()))

    def starts(self, seconds: float) -> Starts:
        return _starts(self._keys(seconds)[1], self.counts)


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


def _of_nodes(keys: Floats, ordered: Floats, counts: Ints, degree: int) -> Ints:
    """Chooses the whole nodes that are free first, and the rest from one more node.

    Where no other node has so many, or too few are of full size, any replicas of the nodes that are free first.
    """
    size = keys.shape[1]
    whole, rest = divmod(degree, size)
    if np.count_nonzero(counts == size) < whole:
        return _of_any(keys, ordered, counts, degree)
    full = _earliest(ordered[-1], whole)
    members: Ints = (full[:, None] * size + np.arange(size)).ravel()
    if rest:
        others = ordered[rest - 1].copy()
        others[full] = np.inf
        if np.isinf(others.min()):
            return np.sort(_earliest(keys.ravel(), degree))
        members = np.concatenate([members, _of_node(keys, int(others.argmin()), rest)])
    return np.sort(members)


def _of_any(keys: Floats, ordered: Floats, counts: Ints, degree: int) -> Ints:
    """Chooses nodes of any size, those that are free first; of the last one only as many replicas as are missing."""
    order = _free(ordered, counts).argsort(kind="stable")
    last = int(np.searchsorted(np.cumsum(counts[order]), degree))
    missing = degree - int(counts[order[:last]].sum())
    parts = [_of_node(keys, int(node), int(counts[node])) for node in order[:last]]
    return np.sort(np.concatenate([*parts, _of_node(keys, int(order[last]), missing)]))


def _free(ordered: Floats, counts: Ints) -> Floats:
    """When all replicas of each node are free."""
    return ordered[counts - 1, np.arange(counts.size)]


def _starts(ordered: Floats, counts: Ints) -> Starts:
    inside, full = np.arange(1, len(ordered) + 1), counts == len(ordered)
    if np.count_nonzero(~full) <= 1:
        whole, seconds = np.arange(1, counts.size + 1) * len(ordered), np.sort(ordered[-1])
    else:
        free = _free(ordered, counts)
        order = free.argsort(kind="stable")
        whole, seconds = np.cumsum(counts[order]), free[order]
    beyond = whole > len(ordered)
    return Starts(np.concatenate([inside, whole[beyond]]), np.concatenate([ordered.min(axis=1), seconds[beyond]]))
