"""The replicas' loads while rings are placed, by nodes: which members are free first for a ring of a given degree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import Floats
from coxswain.plan.problem import Problem

Ints = NDArray[np.int64]


class Ground:
    """Loads as a matrix, one row per node, each row also kept in order; a short last node is filled up with inf.

    A slow replica makes the whole ring slow. So replicas are compared by load plus handicap: the time by which a ring would
    end later on them than on a replica of the usual speed.
    """

    def __init__(self, problem: Problem) -> None:
        self.size = min(problem.node_size, problem.replicas)
        nodes = -(-problem.replicas // self.size)
        self.loads = np.zeros((nodes, self.size))
        self.loads.reshape(-1)[problem.replicas :] = np.inf
        self.usual = float(np.median(problem.speeds))
        slowness = np.zeros_like(self.loads)
        slowness.reshape(-1)[: problem.replicas] = 1 / problem.speeds - 1 / self.usual
        self.slowness = slowness if slowness.any() else None
        self._sorted = self.loads.copy()

    def keys(self, seconds: float) -> tuple[Floats, Floats]:
        """Load plus handicap of every replica for a ring of so many seconds at speed 1: by node, and sorted within nodes."""
        if self.slowness is None:
            return self.loads, self._sorted
        keys = self.loads + self.slowness * seconds
        return keys, np.sort(keys, axis=1)

    def occupy(self, members: Ints, until: float) -> None:
        self.loads.reshape(-1)[members] = until
        if self.slowness is None:
            rows = np.unique(members // self.size)
            self._sorted[rows] = np.sort(self.loads[rows], axis=1)

    def choose(self, degree: int, seconds: float) -> Ints:
        """Members for a ring: within one node where it fits, else whole nodes and the remainder from one more."""
        keys, ordered = self.keys(seconds)
        if degree <= self.size:
            node = int(ordered[:, degree - 1].argmin())
            return np.sort(np.argsort(keys[node], kind="stable")[:degree]) + node * self.size
        members = self._nodes(degree, keys, ordered)
        if self.slowness is not None or members is None:
            loose = np.argsort(keys.reshape(-1), kind="stable")[:degree]
            if members is None or self.end(loose, seconds) < 0.98 * self.end(members, seconds):
                members = loose
        return np.sort(members)

    def _nodes(self, degree: int, keys: Floats, ordered: Floats) -> Ints | None:
        whole, rest = divmod(degree, self.size)
        full = np.argsort(ordered[:, -1], kind="stable")[:whole]
        members = (full[:, None] * self.size + np.arange(self.size)).reshape(-1)
        if rest:
            others = ordered[:, rest - 1].copy()
            others[full] = np.inf
            node = int(others.argmin())
            few = np.argsort(keys[node], kind="stable")[:rest] + node * self.size
            members = np.concatenate([members, few])
        finite = np.unique(members).size == degree and np.isfinite(keys.reshape(-1)[members]).all()
        return members if finite else None

    def end(self, members: Ints, seconds: float) -> float:
        """When a ring of so many seconds at speed 1 would end on these members."""
        slow = 0.0 if self.slowness is None else float(self.slowness.reshape(-1)[members].max())
        return float(self.loads.reshape(-1)[members].max()) + seconds * (1 / self.usual + slow)

    def starts(self, seconds: float) -> tuple[Floats, Floats]:
        """The earliest start of a ring within a node, by degree 1, 2, ..., and of one on 1, 2, ... whole nodes."""
        _, ordered = self.keys(seconds)
        return ordered.min(axis=0), np.sort(ordered[:, -1])
