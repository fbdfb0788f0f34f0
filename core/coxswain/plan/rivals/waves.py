"""Megatron-LM's hybrid context parallelism (core/pipeline_parallel/hybrid_cp_schedule.py, #2282, and its dynamic CP).

Faithful: work is s^2 / degree; a sequence gets the next power of two of s / C replicas, neighbours each; buckets of
equal work, one per degree in use; a wave takes the head of the first bucket that has a place, on free replicas if
there are enough, else on the least loaded group of that degree; it closes once a smaller degree was reached and all
replicas are within 5 %; the last sequences of the longest group are taken out again while that levels the wave; groups
of the least degree double until no replica is idle. A barrier follows every wave.

Decided at its best: the sequences of one replica in a wave are packs of at most C tokens, as in its later dynamic
CP (one sequence a micro-batch before); a degree above the replicas is all of them; what a wave gives back is sorted in
again; a group that cannot double, for want of idle replicas or beyond maxDegree, stays.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappush, heapreplace
from math import fsum
from operator import attrgetter

from coxswain.errors import Refused
from coxswain.plan.fit import next_fit
from coxswain.plan.problem import Draft, Problem

SLACK = 0.05
BUCKET = 1.1  # times its share of the work: a bucket closes


@dataclass(slots=True)
class Group:
    """Neighbouring replicas, their sequences in a wave, and how much work each replica has."""

    degree: int
    sequences: list[int] = field(default_factory=list)
    load: float = 0.0


class Wave:
    """Groups that run beside each other; between two of them all replicas wait."""

    def __init__(self, replicas: int) -> None:
        self.groups: list[Group] = []
        self.idle = replicas
        self._lowest: dict[int, list[tuple[float, int]]] = {}  # per degree a heap of load and group

    def has_place(self, degree: int) -> bool:
        return self.idle >= degree or degree in self._lowest

    def add(self, sequence: int, degree: int, work: float) -> None:
        """Gives the sequence to idle replicas, else to the least loaded group of its degree."""
        heap = self._lowest.setdefault(degree, [])
        if self.idle >= degree:
            self.idle -= degree
            self.groups.append(Group(degree))
            heappush(heap, (0.0, len(self.groups) - 1))
        group = self.groups[heap[0][1]]
        group.sequences.append(sequence)
        group.load += work
        heapreplace(heap, (group.load, heap[0][1]))

    def level(self) -> bool:
        loads = [group.load for group in self.groups]
        return not self.idle and max(loads) - min(loads) <= SLACK * max(loads)

    def trim(self, work: dict[int, float]) -> list[int]:
        """Takes out the last sequence of the group with most work while that levels the wave; returns those."""
        back = list[int]()
        while not self.idle and not self.level():
            loads = [group.load for group in self.groups]
            top = loads.index(max(loads))
            group = self.groups[top]
            less = [*loads[:top], loads[top] - work[group.sequences[-1]], *loads[top + 1 :]]
            if len(group.sequences) < 2 or max(less) - min(less) >= max(loads) - min(loads):
                break
            group.load = less[top]
            back.append(group.sequences.pop())
        return back


def waves(problem: Problem) -> list[Draft]:
    lengths: list[int] = problem.lengths.tolist()
    degrees = [degree(problem, s) for s in lengths]
    left = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    drafts, wave = list[Draft](), 0
    while left:
        groups, left = one_wave(lengths, degrees, left, problem.replicas)
        fill(groups, problem.replicas, problem.max_degree)
        drafts += _drafts(problem, groups, wave)
        wave += 1
    return drafts


def degree(problem: Problem, length: int) -> int:
    """Returns the next power of two of s / C, or all replicas where that is more than there are."""
    wanted = 1 << (-(-length // problem.capacity) - 1).bit_length()
    found = min(wanted, problem.replicas)
    if found > problem.max_degree:
        raise Refused(
            "CapacityLost",
            f"{length} tokens need {found} replicas, a power of two, but maxDegree is {problem.max_degree}: raise it, "
            "raise tokensPerReplica, or use balance Makespan",
        )
    return found


def one_wave(lengths: list[int], degrees: list[int], left: list[int], replicas: int) -> tuple[list[Group], list[int]]:
    """Returns the groups of the next wave and the sequences that remain, longest first both times."""
    work = {i: lengths[i] ** 2 / degrees[i] for i in left}
    wave = Wave(replicas)
    buckets = [deque(bucket) for bucket in _buckets(left, degrees, work)]
    first = degrees[left[0]]
    while bucket := next((b for b in buckets if b and wave.has_place(degrees[b[0]])), None):
        i = bucket.popleft()
        wave.add(i, degrees[i], work[i])
        if degrees[i] < first and any(buckets) and wave.level():
            break
    back = wave.trim(work)
    return wave.groups, sorted([*back, *(i for b in buckets for i in b)], key=lambda i: (-lengths[i], i))


def _buckets(left: list[int], degrees: list[int], work: dict[int, float]) -> list[list[int]]:
    """Cuts the sequences into buckets of about equal work, at least one per degree in use."""
    count = len({degrees[i] for i in left})
    share = fsum(work.values()) / count
    buckets, taken = [list[int]()], 0.0
    for place, i in enumerate(left):
        if buckets[-1] and (taken + work[i] > BUCKET * share or len(left) - place <= count - len(buckets)):
            buckets.append([])
            taken = 0.0
        buckets[-1].append(i)
        taken += work[i]
    return buckets


def fill(groups: list[Group], replicas: int, max_degree: int) -> None:
    """Doubles the first group of the least degree until no replica is idle, or none can double."""
    idle = replicas - sum(group.degree for group in groups)
    while idle:
        group = min(groups, key=attrgetter("degree"))
        more = min(group.degree, replicas - group.degree)
        if more > idle or group.degree + more > max_degree or not more:
            return
        group.degree += more
        idle -= more


def _drafts(problem: Problem, groups: list[Group], wave: int) -> list[Draft]:
    drafts, first = list[Draft](), 0
    for group in groups:
        members = tuple(range(first, first + group.degree))
        packs = next_fit(problem.lengths.tolist(), group.sequences, group.degree * problem.capacity)
        drafts += [Draft(members, pack, wave) for pack in packs]
        first += group.degree
    return drafts
