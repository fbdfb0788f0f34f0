"""Times a list of tasks under the cost model, as the workers would run it.

A placement carries these times, not those that its planner assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from coxswain.plan.head_groups import group_size, ring_seconds
from coxswain.plan.problem import Draft, Problem
from coxswain.plan.values import Placement


@dataclass(frozen=True, slots=True)
class Timeline:
    """Start and duration of every task in global order, and the busy time of each replica."""

    starts: tuple[float, ...]
    seconds: tuple[float, ...]
    busy: tuple[float, ...]  # per replica, waiting excluded
    work: float  # sum over tasks and members of seconds at speed 1
    makespan: float

    @property
    def idle_fraction(self) -> float:
        total = len(self.busy) * self.makespan
        return max(0.0, 1 - fsum(self.busy) / total) if total else 0.0


def simulate(problem: Problem, tasks: Iterable[Draft]) -> Timeline:
    """Runs each replica's tasks in order; a ring starts when all its members are free, a wave when all replicas are."""
    drafts = [*tasks]
    plain, speeds = seconds_of(problem, drafts), problem.speeds.tolist()
    free, busy = [0.0] * problem.replicas, [0.0] * problem.replicas
    starts, seconds, work, current = list[float](), list[float](), 0.0, 0
    for (members, _, wave), alone in zip(drafts, plain, strict=True):
        if wave != current:
            free, current = [max(free)] * problem.replicas, wave
        start, took = max([free[r] for r in members]), alone / min([speeds[r] for r in members])
        for r in members:
            free[r] = start + took
            busy[r] += took
        work += alone * len(members)
        starts.append(start)
        seconds.append(took)
    return Timeline(tuple(starts), tuple(seconds), tuple(busy), work, max(free))


def seconds_of(problem: Problem, drafts: Sequence[Draft]) -> list[float]:
    """Seconds of each task at speed 1. Rings of one sequence are timed together."""
    seconds = task_seconds(problem)
    alone = [k for k, draft in enumerate(drafts) if len(draft.members) > 1 and len(draft.sequences) == 1]
    together = dict(zip(alone, _rings_seconds(problem, [drafts[k] for k in alone]), strict=True))
    return [together.get(k) or seconds(draft.members, draft.sequences) for k, draft in enumerate(drafts)]


def task_seconds(problem: Problem) -> Callable[[Sequence[int], Sequence[int]], float]:
    """Returns what times a task by its members and sequences: seconds at speed 1, a pack where there is one member."""
    own: list[float] = problem.cost.work_seconds(problem.lengths).tolist()

    def seconds(members: Sequence[int], sequences: Sequence[int]) -> float:
        if len(members) == 1:
            return problem.cost.task + fsum([own[i] for i in sequences])
        return _ring_seconds(problem, members, sequences)

    return seconds


def _rings_seconds(problem: Problem, rings: Sequence[Draft]) -> list[float]:
    """The same as `_ring_seconds` of each ring, which has one sequence."""
    if problem.cost.exchange is not None or not rings:
        return [_ring_seconds(problem, draft.members, draft.sequences) for draft in rings]
    degrees = np.array([len(draft.members) for draft in rings])
    nodes = problem.nodes[[r for draft in rings for r in draft.members]]
    begins = np.cumsum(degrees) - degrees
    inside = np.minimum.reduceat(nodes, begins) == np.maximum.reduceat(nodes, begins)
    s, d = problem.lengths[[draft.sequences[0] for draft in rings]].astype(np.float64), degrees.astype(np.float64)
    inner, outer = problem.cost.ring_seconds(s, d, True), problem.cost.ring_seconds(s, d, False)
    found: list[float] = np.where(inside, inner, outer).tolist()
    return found


def _ring_seconds(problem: Problem, members: Sequence[int], sequences: Sequence[int]) -> float:
    if problem.cost.exchange is not None:
        lengths, nodes = problem.lengths[list(sequences)], problem.nodes[list(members)].tolist()
        return ring_seconds(problem.cost, lengths, nodes, group_size(problem.cost, lengths, nodes))
    inside = problem.inside_node(members)
    if len(sequences) == 1:
        return float(problem.cost.ring_seconds(float(problem.lengths[sequences[0]]), float(len(members)), inside))
    return problem.cost.packed_ring_seconds(problem.lengths[list(sequences)], len(members), inside)


def drafts_of(placement: Placement) -> list[Draft]:
    """Returns the tasks of a finished placement as a planner writes them."""
    return [Draft(t.replicas, tuple(dict.fromkeys(s.sequence for s in t.slices)), t.wave or 0) for t in placement.tasks]


def ring_bytes(problem: Problem, tasks: Iterable[Draft]) -> tuple[int, int]:
    """Returns the bytes that rings move inside nodes and between nodes.

    Each hop of a ring carries D-1 blocks of keys and values.
    """
    inside = between = 0.0
    for members, sequences, _ in tasks:
        degree = len(members)
        if degree == 1:
            continue
        block = problem.cost.constants.kv_bytes_per_token * float(problem.lengths[list(sequences)].sum()) / degree
        nodes = problem.nodes[[*members]]
        crossing = int((nodes != np.roll(nodes, 1)).sum())
        inside += block * (degree - 1) * (degree - crossing)
        between += block * (degree - 1) * crossing
    return round(inside), round(between)
