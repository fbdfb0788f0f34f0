"""Deals short sequences to pipelines by length class, and cuts each pipeline's packs of equal work.

A pipeline of p stages ends after the sum of its tasks and p - 1 times the longest of them. So long sequences go together:
to pipelines with long rings, which wait that long anyway, then to as few others as hold them. What is left, shorter than
a pack should take, levels the ends.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import Floats
from coxswain.plan.pipelines.groups import Stack
from coxswain.plan.pipelines.ramps import ramp, ramp_wait
from coxswain.plan.problem import Problem
from coxswain.plan.water_level import water_level

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
LOOSE = 1.03  # times the longest task of a replica: packs may take that long


@dataclass(frozen=True, slots=True)
class Deal:
    """The replica of each short sequence (-1: not yet dealt), how long a task of each replica may take, its base end."""

    replica: Ints
    longest: Floats
    ends: Floats  # what is dealt, and p - 1 times the longest; less where a pipeline has ramps
    ramps: Bools  # which pipelines have ramps
    level: float  # when the last replica ends once everything is dealt


@dataclass(frozen=True, slots=True)
class Short:
    """Short sequences, longest first, with their work at speed 1, and how many of them a pack holds alone."""

    problem: Problem
    sequences: Ints
    work: Floats
    pack: float  # seconds that a pack should take at speed 1
    coarse: int

    @property
    def ramps(self) -> bool:
        """Whether sequences no longer than a full pack fill as many of them on every pipeline as it has stages."""
        problem = self.problem
        full = problem.cost.linear * problem.capacity
        few = float(self.work[self.work <= full].sum())
        return few >= float(problem.stages.max()) * (full + problem.cost.task) * float(problem.speeds.sum())

    @property
    def fine(self) -> float:
        """Work of all that are no longer than a pack, with the cost of their tasks."""
        task = self.problem.cost.task
        return float(self.work[self.coarse :].sum()) * self.pack / max(self.pack - task, self.pack / 2)


def short_of(problem: Problem, sequences: Ints, pack: float) -> Short:
    """`sequences`: longest first."""
    work = problem.cost.work_seconds(problem.lengths[sequences])
    return Short(problem, sequences, work, pack, int((work + problem.cost.task > pack).sum()))


def deal(short: Short, stacked: Stack, stages: int, end: float) -> Deal:
    """Gives runs of the long ones, longest first, to the replicas with the longest rings first, as many as end by `end`."""
    problem, task = short.problem, short.problem.cost.task
    took = short.work[: short.coarse] + task
    ready: list[float] = [0.0, *np.cumsum(took).tolist()]
    replica = np.full(short.sequences.size, -1, dtype=np.int64)
    longest, sums, speeds = stacked.longest.tolist(), stacked.sums.tolist(), problem.speeds.tolist()
    at = 0
    for r in np.lexsort((-problem.speeds, stacked.sums, -stacked.longest)).tolist():
        if at == short.coarse:
            break
        top = max(longest[r], (ready[at + 1] - ready[at]) / speeds[r])
        to = bisect_right(ready, ready[at] + (end - sums[r] - (stages - 1) * top) * speeds[r]) - 1
        if to > at:
            replica[at:to], longest[r] = r, top
            sums[r] += (ready[to] - ready[at]) / speeds[r]
            at = to
    most = np.maximum(longest, short.pack / problem.speeds)
    used = np.array(sums)
    ends, ramps = _with_ramps(short, stacked, used, most, stages)
    if at < short.coarse:
        return Deal(replica, most, ends, ramps, np.inf)
    level = water_level(ends, problem.speeds, short.fine)
    return Deal(replica, most, ends, ramps, max(float(ends[used > 0].max(initial=0)), level))


def _with_ramps(short: Short, stacked: Stack, used: Floats, most: Floats, stages: int) -> tuple[Floats, Bools]:
    """The base ends, and which pipelines have ramps: those without rings that the rest levels by as much as ramps take."""
    speeds, plain = short.problem.speeds, used + (stages - 1) * most
    if not short.ramps:
        return plain, np.zeros(used.size, dtype=np.bool_)
    begun = used + ramp_wait(stages) * most + (stages - 1) * short.problem.cost.task / speeds
    hoped = np.where((stacked.count == 0) & (begun < plain), begun, plain)
    rest = water_level(hoped, speeds, short.fine) - hoped
    ramps: Bools = (hoped < plain) & (rest >= stages * most)
    return np.where(ramps, hoped, plain), ramps


def level_rest(short: Short, dealt: Deal) -> Ints:
    """The replica of every sequence: those not yet dealt go to the one that ends first, longest first."""
    replica, ends, speeds = dealt.replica.copy(), dealt.ends.copy(), short.problem.speeds
    took, at = short.work * (short.fine / max(1e-30, float(short.work[short.coarse :].sum()))), short.coarse
    while at < replica.size:
        after = ends + took[at] / speeds
        chosen = np.flatnonzero(ends < after.min())
        chosen = chosen if chosen.size else after.argmin(keepdims=True)  # its seconds are too few to change the sum
        chosen = chosen[np.argsort(ends[chosen], kind="stable")][: replica.size - at]
        now = slice(at, at + chosen.size)
        replica[now] = chosen
        ends[chosen] += took[now] / speeds[chosen]
        at += chosen.size
    return replica


@dataclass(frozen=True, slots=True)
class Packs:
    """Packs with their sequences (numbers among the short ones) and the work of these."""

    replica: Ints
    items: list[Ints]
    seconds: Floats


def cut_packs(short: Short, replica: Ints, dealt: Deal) -> Packs:
    """Cuts as few packs as their replica's longest task and the capacity allow, of equal work: longest first to the lightest."""
    problem, count = short.problem, short.problem.replicas
    most = np.maximum(dealt.longest * problem.speeds - problem.cost.task, dealt.longest * problem.speeds / 2)
    tokens = np.bincount(replica, weights=problem.lengths[short.sequences], minlength=count)
    work = np.bincount(replica, weights=short.work, minlength=count).astype(np.float64)
    least = np.maximum(tokens / problem.capacity, work / most * (1 - 1e-9))
    load, packs = _begun(problem, least, work, dealt.ramps)
    room = np.full(load.shape, problem.capacity)
    order = np.argsort(replica, kind="stable")
    first = np.searchsorted(replica[order], np.arange(count + 1))
    number = np.zeros_like(replica)
    for k in range(int(np.diff(first).max(initial=0))):
        mine = np.flatnonzero(first[:-1] + k < first[1:])
        items = order[first[mine] + k]
        size = problem.lengths[short.sequences[items]]
        at = np.where(room[mine] >= size[:, None], load[mine], np.inf).argmin(axis=1)
        over = (load[mine, at] > 0) & (load[mine, at] + short.work[items] > LOOSE * most[mine])
        full = over | (room[mine, at] < size)
        if full.any():
            room, load, at = _opened(room, load, packs, mine, at, full, problem.capacity)
        number[items] = at
        room[mine, at] -= size
        load[mine, at] += short.work[items]
    return _packs(short, replica, number)


def _begun(problem: Problem, least: Floats, work: Floats, ramps: Bools) -> tuple[Floats, Ints]:
    """What the packs of each replica are loaded with at first, infinity for no pack, and their number.

    `least`: how many full packs there are at least. A pack of a ramp begins with what it lacks of a full one.
    """
    stages = int(problem.stages.max())
    middle = np.maximum(np.ceil(np.where(ramps, least - (stages - 1), least)), ramps).astype(np.int64)
    parts, task = ramp(stages), problem.cost.task
    packs = middle + ramps * parts.size
    columns = np.arange(max(int(packs.max(initial=0)) + 1, parts.size))
    load = np.where(columns < packs[:, None], 0.0, np.inf)
    even = (work[ramps] + task * parts.size - task * (stages - 1)) / (middle[ramps] + stages - 1)
    load[ramps, : parts.size] = np.multiply.outer(even + task, 1 - parts)
    return load, packs


def _packs(short: Short, replica: Ints, number: Ints) -> Packs:
    order = np.lexsort((number, replica))
    begins = np.flatnonzero(np.diff(replica[order], prepend=-1) | np.diff(number[order], prepend=-1))
    if not begins.size:
        return Packs(replica, [], short.work)
    return Packs(replica[order[begins]], np.split(order, begins[1:]), np.add.reduceat(short.work[order], begins))


def _opened(
    room: Ints, load: Floats, packs: Ints, mine: Ints, at: Ints, full: NDArray[np.bool_], capacity: int
) -> tuple[Ints, Floats, Ints]:
    """Opens one pack more in replicas where no pack has room."""
    at = np.where(full, packs[mine], at)
    load[mine[full], at[full]] = 0.0
    packs[mine[full]] += 1
    if int(packs.max()) == room.shape[1]:
        room = np.concatenate([room, np.full((len(room), 4), capacity)], axis=1)
        load = np.concatenate([load, np.full((len(load), 4), np.inf)], axis=1)
    return room, load, at
