"""Makespan for pipelines: rings in step on some of them, length classes on the others, chosen by the end of the last one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from coxswain.plan.degrees import ring_seconds
from coxswain.plan.pipelines.classes import Deal, Packs, Short, cut_packs, deal, level_rest, short_of
from coxswain.plan.pipelines.groups import Group, Rings, Stack, degrees_for, rings_of
from coxswain.plan.pipelines.operations import ordered
from coxswain.plan.problem import Draft, Planner, Problem
from coxswain.plan.simulate import seconds_of, simulate
from coxswain.plan.values import Task

Ints = NDArray[np.int64]
PARTS = (1, 2, 4, 8)  # a pack should take such a part of a full pack of short sequences
STEPS = 12  # durations of rings that are tried, between that of a full pack and those of least degree
HALVINGS = 9  # of the range in which the common end lies
HOPELESS = (
    1.15  # times the end of a plan: a rival with such an estimate is not simulated. Estimates are up to 13 % too high.
)


@dataclass(frozen=True, slots=True)
class Trial:
    """Rings and the dealing of short sequences; `dealt.level` is when the last pipeline ends, if none waits."""

    rings: Rings
    groups: list[Group]
    stacked: Stack
    short: Short
    dealt: Deal


def on_pipelines(flat: Planner) -> Planner:
    """The planner for replicas of any equal depth. `flat` plans those of one stage."""
    return lambda problem: _dispatched(problem, flat) if (problem.stages > 1).any() else flat(problem)


def _dispatched(problem: Problem, flat: Planner) -> list[Draft]:
    """Places a step on pipelines of equal depth; as `flat` does for one stage where that ends first."""
    if not problem.lengths.size:
        return []
    order = np.argsort(-problem.lengths, kind="stable")
    count = int((problem.lengths > problem.capacity).sum())
    trial, rival = search(problem, order[:count], order[count:]), flat(problem)
    mine = drafts_of(trial)
    end = end_of(problem, mine)
    hopeless = _estimate(problem, rival) >= HOPELESS * end
    return mine if hopeless or end <= end_of(problem, rival) else rival


def end_of(problem: Problem, drafts: list[Draft]) -> float:
    """When the last stage of the last replica ends."""
    if (problem.stages == 1).all():
        return simulate(problem, drafts).makespan
    seconds = simulate(problem, drafts).seconds
    tasks = [
        Task(i, "ring" if len(d.members) > 1 else "pack", d.members, (), took, d.wave)
        for i, (d, took) in enumerate(zip(drafts, seconds, strict=True))
    ]
    return ordered(problem.layout, tasks, problem.loss).seconds


def _estimate(problem: Problem, drafts: list[Draft]) -> float:
    """The end of a plan whose rings never wait, nearly: the sum of a pipeline's tasks, and stages - 1 times the longest."""
    sizes = np.array([len(draft.members) for draft in drafts], dtype=np.int64)
    members = np.array([r for draft in drafts for r in draft.members], dtype=np.int64)
    plain = np.repeat(seconds_of(problem, drafts), sizes)
    slowest = np.minimum.reduceat(problem.speeds[members], np.cumsum([0, *sizes[:-1]], dtype=np.int64))
    took, longest = plain / np.repeat(slowest, sizes), np.zeros(problem.replicas)
    np.maximum.at(longest, members, took)
    return float((np.bincount(members, took, problem.replicas) + (problem.stages - 1) * longest).max())


def search(problem: Problem, long: Ints, short: Ints) -> Trial:
    """Takes the rings that end first with packs of a quarter, then the best size of packs for them."""
    full = problem.cost.task + problem.cost.linear * problem.capacity
    quarter, best = short_of(problem, short, full / 4), None
    for rings in _rings(problem, long, full):
        best = fitted(rings, quarter, best.dealt.level if best else np.inf) or best
    assert best is not None  # without a rival, any rings fit at last
    for part in PARTS:
        best = fitted(best.rings, short_of(problem, short, full / part), best.dealt.level) or best
    return best


def _rings(problem: Problem, long: Ints, shortest: float) -> Iterator[Rings]:
    """Rings of several durations; those over most replicas on all of them, or each group by itself."""
    seen = set[tuple[int, ...]]()
    for seconds in _durations(problem, long, shortest):
        for wide in (True, False):
            rings = rings_of(problem, long, seconds, wide=wide)
            if rings.fit and (rings.wide, *rings.degrees) not in seen:
                seen.add((rings.wide, *rings.degrees))
                yield rings


def _durations(problem: Problem, long: Ints, shortest: float) -> list[float]:
    if not long.size:
        return [shortest]
    least = degrees_for(problem, long, np.inf)
    longest = float(ring_seconds(problem, problem.lengths[long], least).max())
    found: list[float] = np.geomspace(min(shortest, longest), longest, STEPS).tolist()
    return found


def fitted(rings: Rings, short: Short, rival: float) -> Trial | None:
    """Finds the least common end by bisection: by it, rings and long packs fit in runs, and the rest levels below it.

    None if that is not before the rival: what does not end before it where it may last as long does not where it may last less.
    """
    if rival < np.inf and not ((last := _trial(rings, short, rival)) and last.dealt.level < rival):
        return None
    low, high, best = rings.problem.lower_bound(), rival, None
    while high == np.inf and not (best and best.dealt.level <= low):
        low *= 2
        best = _trial(rings, short, low)
    low, high = (low / 2, low) if best else (low, high)
    rival = best.dealt.level if best else rival
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = _trial(rings, short, middle)
        if found and found.dealt.level < rival:
            best, rival = found, found.dealt.level
        low, high = (low, middle) if found and found.dealt.level <= middle else (middle, high)
    return best


def _trial(rings: Rings, short: Short, end: float) -> Trial | None:
    stages = int(rings.problem.stages.max())
    groups = rings.groups(end, stages)
    if groups is None:
        return None
    stacked = rings.stack(groups)
    return Trial(rings, groups, stacked, short, deal(short, stacked, stages, end))


def drafts_of(trial: Trial) -> list[Draft]:
    """Rings first, then packs, longest first; where a replica has no ring, its longest pack is in the middle."""
    problem = trial.rings.problem
    replica = level_rest(trial.short, trial.dealt)
    packs = cut_packs(trial.short, replica, trial.dealt)
    names = [tuple(trial.short.sequences[items].tolist()) for items in packs.items]
    count = np.bincount(packs.replica, minlength=problem.replicas)
    rings = trial.stacked.count
    before = np.where(rings > 0, 0, (count + 1) // 2)
    rank = _ranks(packs)
    rises = (rank % 2 == 0) & (rank // 2 < before[packs.replica])
    behind = (before + rings + count)[packs.replica] - rank
    place = np.where(rises, rank // 2, behind)
    found = [(int(p), Draft((int(r),), n)) for p, r, n in zip(place, packs.replica, names, strict=True)]
    at = before.copy()
    for sequence, members in trial.rings.members(trial.groups):
        found.append((int(at[members[0]]), Draft(tuple(members.tolist()), (sequence,))))
        at[members] += 1
    return [draft for _, draft in sorted(found, key=itemgetter(0))]


def _ranks(packs: Packs) -> Ints:
    """Of each pack the number of shorter ones of its replica."""
    order = np.lexsort((packs.seconds, packs.replica))
    first = np.searchsorted(packs.replica[order], packs.replica[order])
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size) - first
    return rank
