"""Gives rings to groups of pipelines: all members of a group run the same rings in the same order, as one pipeline does.

Rings of different members that meet at different places of their pipelines stall them. So sequences go to groups in runs,
longest first, and a group has the degree that its first one needs. Rings that need more than half of all replicas may
come before, over all of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import Floats
from coxswain.plan.degrees import least_degrees, ring_seconds
from coxswain.plan.problem import Problem

Ints = NDArray[np.int64]
UNLIKE = 4  # a ring of a quarter of a group's degree or less does not join it


@dataclass(frozen=True, slots=True)
class Stack:
    """Of each replica the sum of its rings, the longest and their number."""

    sums: Floats
    longest: Floats
    count: Ints


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences [start, stop) of the long ones over replicas [first, first + degree)."""

    start: int
    stop: int
    first: int
    degree: int
    seconds: float


@dataclass(slots=True)
class Rings:
    """Long sequences, longest first, and their degrees for rings of a chosen duration. Replicas are those by node."""

    problem: Problem
    sequences: Ints
    degrees: list[int]
    wide: int  # so many run on all replicas first
    order: Ints
    _ready: dict[int, list[float]] = field(default_factory=dict)

    def ready(self, degree: int) -> list[float]:
        """Seconds of the first 0, 1, 2 ... sequences as rings of one degree."""
        if degree not in self._ready:
            lengths = self.problem.lengths[self.sequences]
            seconds = ring_seconds(self.problem, lengths, np.full_like(lengths, degree))
            self._ready[degree] = [0.0, *np.cumsum(seconds).tolist()]
        return self._ready[degree]

    @property
    def fit(self) -> bool:
        """Whether one group for each run of alike degrees finds replicas: whether they fit by some end."""
        return self.groups(np.inf, 1) is not None

    def groups(self, end: float, stages: int) -> list[Group] | None:
        """Fills one group after the other with rings that end by `end`; None: more replicas would be needed."""
        everywhere, found, at, first = min(self.problem.max_degree, self.problem.replicas), list[Group](), 0, 0
        speed = float(np.median(self.problem.speeds))
        base = top = 0.0
        if self.wide:
            ready = self.ready(everywhere)
            base, top, at = ready[self.wide] / speed, ready[1] / speed, self.wide
            if base + (stages - 1) * top > end:
                return None
            found.append(Group(0, at, 0, everywhere, ready[at]))
        while at < len(self.degrees):
            degree, ready = self.degrees[at], self.ready(self.degrees[at])
            longest = max(top, (ready[at + 1] - ready[at]) / speed)
            room = (end - base - (stages - 1) * longest) * speed
            to = min(bisect_right(ready, ready[at] + room) - 1, self._alike(at))
            if to <= at or first + degree > self.problem.replicas:
                return None
            found.append(Group(at, to, first, degree, ready[to] - ready[at]))
            at, first = to, first + degree
        return found

    def _alike(self, at: int) -> int:
        """Where sequences begin that need so small a part of the degree that they are better off in smaller groups."""
        return bisect_left(self.degrees, True, lo=at, key=lambda degree: degree * UNLIKE <= self.degrees[at])

    def stack(self, groups: list[Group]) -> Stack:
        count = self.problem.replicas
        stack = Stack(np.zeros(count), np.zeros(count), np.zeros(count, int))
        wide = int(self.wide > 0)
        for side_by_side in (groups[:wide], groups[wide:]):
            if side_by_side:
                self._add(stack, side_by_side)
        return stack

    def _add(self, stack: Stack, groups: list[Group]) -> None:
        """Adds what groups run that are neighbours."""
        degrees, first = np.array([group.degree for group in groups]), groups[0].first
        members = self.order[first : first + int(degrees.sum())]
        speeds = np.minimum.reduceat(self.problem.speeds[members], np.cumsum(degrees) - degrees)
        ready = [self.ready(group.degree) for group in groups]
        top = [r[group.start + 1] - r[group.start] for r, group in zip(ready, groups, strict=True)]
        stack.sums[members] += np.repeat([group.seconds for group in groups] / speeds, degrees)
        stack.longest[members] = np.maximum(stack.longest[members], np.repeat(top / speeds, degrees))
        stack.count[members] += np.repeat([group.stop - group.start for group in groups], degrees)

    def members(self, groups: list[Group]) -> Iterator[tuple[int, Ints]]:
        """The rings in the order in which they run, with their members."""
        for group in groups:
            home = np.sort(self.order[group.first : group.first + group.degree])
            mine = self.sequences[group.start : group.stop].tolist()
            yield from ((i, home) for i in (mine if self.wide and group.start else mine[::-1]))


def rings_of(problem: Problem, sequences: Ints, seconds: float, *, wide: bool) -> Rings:
    """Rings of at most so many seconds at speed 1 where a degree gives them. `wide`: those over more than half run on all."""
    degrees = degrees_for(problem, sequences, seconds)
    many = int((degrees * 2 > problem.replicas).sum()) if wide else 0
    return Rings(problem, sequences, degrees.tolist(), many, by_node(problem))


def degrees_for(problem: Problem, sequences: Ints, seconds: float) -> Ints:
    """The least degrees for rings of so many seconds at speed 1, rounded up to even parts of a node, beyond it to whole nodes."""
    lengths, node = problem.lengths[sequences], problem.node_size
    least = least_degrees(problem, lengths, seconds)
    parts = np.array([d for d in range(1, node + 1) if node % d == 0])
    inside = parts[np.minimum(np.searchsorted(parts, least), parts.size - 1)]
    even = np.where(least <= node, inside, -(-least // node) * node)
    most = min(problem.max_degree, problem.replicas)
    return np.where(even <= most, even, np.minimum(least, most))


def by_node(problem: Problem) -> Ints:
    """Replicas node by node, the fastest nodes first: long rings come there."""
    slowest = np.full(int(problem.nodes.max(initial=0)) + 1, np.inf)
    np.minimum.at(slowest, problem.nodes, problem.speeds)
    return np.lexsort((np.arange(problem.replicas), problem.nodes, -slowest[problem.nodes]))
