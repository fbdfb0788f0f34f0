"""Rings onto replicas: each ring needs all its members at once, so the longest go first and onto level ground."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import Floats
from coxswain.plan.problem import Problem

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ring:
    """One long sequence with its replicas and its planned time."""

    sequence: int
    members: tuple[int, ...]
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class Gang:
    """All rings, when each replica has done its last one, and the gaps (replica, start, stop) that replicas wait in."""

    rings: tuple[Ring, ...]
    loads: Floats
    gaps: tuple[tuple[int, float, float], ...]


class Ground:
    """Replicas' loads as a matrix of nodes, each row also kept in order; the last node may be short (loads of inf)."""

    def __init__(self, problem: Problem) -> None:
        self.size = min(problem.node_size, problem.replicas)
        nodes = -(-problem.replicas // self.size)
        self.loads = np.zeros((nodes, self.size))
        self.loads.reshape(-1)[problem.replicas :] = np.inf
        self.sorted = np.sort(self.loads, axis=1)

    def raise_to(self, members: Ints, level: float) -> None:
        self.loads.reshape(-1)[members] = level
        rows = np.unique(members // self.size)
        self.sorted[rows] = np.sort(self.loads[rows], axis=1)

    def inside(self, degree: int) -> Ints:
        """The `degree` least loaded replicas of the node where they are free first."""
        node = int(self.sorted[:, degree - 1].argmin())
        order = np.argsort(self.loads[node], kind="stable")[:degree]
        return np.sort(order) + node * self.size

    def across(self, degree: int) -> Ints:
        """Whole nodes that are free first, and for the remainder the least loaded of one more: few hops leave a node."""
        whole, rest = divmod(degree, self.size)
        full = np.argsort(self.sorted[:, -1], kind="stable")[:whole]
        if whole and not np.isfinite(self.sorted[full, -1]).all():
            return self.anywhere(degree)
        members = (full[:, None] * self.size + np.arange(self.size)).reshape(-1)
        if rest:
            candidates = self.sorted[:, rest - 1].copy()
            candidates[full] = np.inf
            node = int(candidates.argmin())
            if not np.isfinite(candidates[node]):
                return self.anywhere(degree)
            members = np.concatenate([members, np.argsort(self.loads[node], kind="stable")[:rest] + node * self.size])
        return np.sort(members)

    def anywhere(self, degree: int) -> Ints:
        return np.sort(np.argsort(self.loads.reshape(-1), kind="stable")[:degree])


def place_rings(problem: Problem, sequences: Ints, degrees: Ints) -> Gang:
    """Longest duration first; each ring starts as soon as its members can."""
    inside = degrees <= problem.node_size
    lengths = problem.lengths[sequences].astype(np.float64)
    seconds = np.where(
        inside,
        problem.cost.ring_seconds(lengths, degrees.astype(np.float64), True),
        problem.cost.ring_seconds(lengths, degrees.astype(np.float64), False),
    )
    order = np.lexsort((sequences, -degrees, -seconds))
    ground = Ground(problem)
    rings: list[Ring] = []
    gaps: list[tuple[int, float, float]] = []
    flat = ground.loads.reshape(-1)
    for k in order.tolist():
        degree = int(degrees[k])
        members = ground.inside(degree) if inside[k] else ground.across(degree)
        before = flat[members]
        start = float(before.max())
        stop = start + float(seconds[k]) / float(problem.speeds[members].min())
        names = members.tolist()
        gaps += [(r, free, start) for r, free in zip(names, before.tolist(), strict=True) if free < start]
        rings.append(Ring(int(sequences[k]), tuple(names), start, stop))
        ground.raise_to(members, stop)
    return Gang(tuple(rings), flat[: problem.replicas].copy(), tuple(gaps))
