"""Places rings on replicas, longest first, and widens those that would end after the target."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from coxswain.cost.model import Floats
from coxswain.plan.degrees import ring_seconds
from coxswain.plan.makespan.line import Line
from coxswain.plan.makespan.loads import Ints, ReplicaLoads, Seats, replica_loads
from coxswain.plan.problem import Problem

SLACK = 1.002  # times the target: a ring that ends by then is not widened


class Ring(NamedTuple):
    """One long sequence with its replicas in ring order and its planned start."""

    sequence: int
    members: tuple[int, ...]
    start: float


class Need(NamedTuple):
    """A sequence that becomes a ring: the degree that it shall have, and seconds at speed 1.

    `inside`: those of degrees 1, 2, ... in a node.
    """

    length: int
    degree: int
    seconds: float
    inside: Floats


@dataclass(frozen=True, slots=True)
class Gaps:
    """Times in which replicas wait for a ring to start."""

    replica: Ints
    start: Floats
    stop: Floats


@dataclass(frozen=True, slots=True)
class RingSchedule:
    """All rings, when each replica ends its last one, and the gaps between them."""

    rings: tuple[Ring, ...]
    loads: Floats
    gaps: Gaps


class Rings:
    """Collects rings as they are placed, and the waits before them."""

    def __init__(self, line: Line) -> None:
        self._line, self._sequences, self._seats = line, list[int](), list[Seats]()

    def add(self, sequence: int, seats: Seats) -> None:
        """Adds a ring that starts when all its members are free."""
        self._sequences.append(sequence)
        self._seats.append(seats)

    def schedule(self, loads: Floats) -> RingSchedule:
        """`loads`: when each replica ends its last ring."""
        sizes = [seats.places.size for seats in self._seats]
        members = self._line.replicas[np.concatenate([np.zeros(0, dtype=np.int64), *(s.places for s in self._seats)])]
        free = np.concatenate([np.zeros(0), *(s.free for s in self._seats)])
        stop = np.repeat([s.start for s in self._seats], sizes)
        waiting = free < stop
        names, cuts = members.tolist(), pairwise(accumulate(sizes, initial=0))
        rings = [
            Ring(sequence, tuple(names[a:b]), seats.start)
            for sequence, seats, (a, b) in zip(self._sequences, self._seats, cuts, strict=True)
        ]
        return RingSchedule(tuple(rings), loads, Gaps(members[waiting], free[waiting], stop[waiting]))


def place_rings(problem: Problem, sequences: Ints, degrees: Ints, target: float, give_up: float) -> RingSchedule | None:
    """Starts each ring as soon as its members are free, longest duration first.

    A ring that would end after the target gets more members. None as soon as one ends at `give_up`
    or later: another plan is better.
    """
    lengths = problem.lengths[sequences]
    seconds = ring_seconds(problem, lengths, degrees)
    loads = replica_loads(problem)
    rings = Rings(loads.line)
    inside = ring_seconds(problem, lengths[:, None], np.arange(1, loads.size + 1))
    for k in np.lexsort((sequences, -degrees, -seconds)).tolist():
        need = Need(int(lengths[k]), int(degrees[k]), float(seconds[k]), inside[k])
        seats, stop = _place(problem, loads, need, target)
        if stop >= give_up:
            return None
        rings.add(int(sequences[k]), seats)
        loads.occupy(seats.places, stop)
    return rings.schedule(loads.of(np.arange(problem.replicas)))


def _place(problem: Problem, loads: ReplicaLoads, need: Need, target: float) -> tuple[Seats, float]:
    """Returns the members, and when the ring ends on them."""
    seats, stop = _chosen(problem, loads, need.length, need.degree, need.seconds)
    if stop <= SLACK * target or loads.first_free() >= target:
        return seats, stop
    wider, shorter = _widen(problem, loads, need, target)
    if wider > need.degree:
        other, other_stop = _chosen(problem, loads, need.length, wider, shorter)
        if other_stop < stop:
            return other, other_stop
    return seats, stop


def _chosen(problem: Problem, loads: ReplicaLoads, length: int, degree: int, seconds: float) -> tuple[Seats, float]:
    """Returns the members for a degree, which may be rounded up to whole nodes, and when the ring ends on them."""
    seats = loads.choose(degree, seconds)
    if seats.places.size > degree:
        seconds = float(ring_seconds(problem, np.array([length]), np.array([seats.places.size]))[0])
    return seats, loads.end(seats, seconds)


def _widen(problem: Problem, loads: ReplicaLoads, need: Need, target: float) -> tuple[int, float]:
    """Returns the least greater degree that ends by the target, else the one that ends first; and its seconds.

    Candidates lie within a node or are whole nodes. These are looked at where none of those ends by the target.
    """
    best, found, shorter = np.inf, need.degree, need.seconds
    for degrees, starts in loads.starts(need.seconds):
        in_node = degrees[0] == 1
        took = need.inside if in_node else ring_seconds(problem, np.full_like(degrees, need.length), degrees)
        possible = (degrees > need.degree) & (degrees <= problem.max_degree)
        ends = np.where(possible, starts + took / loads.usual, np.inf)
        good = ends <= target
        k = int(good.argmax()) if good.any() else int(ends.argmin())
        if ends[k] < best:
            best, found, shorter = ends[k], int(degrees[k]), float(took[k])
        if best <= target:
            break
    return found, shorter
