"""Makespan: every long sequence gets just enough replicas to end within a target time, short ones fill what is left.

The target is searched over a few factors of the lower bound; each trial schedules the rings and estimates by water-filling
how far the packs would rise. Counts of trials, never seconds, limit the search, so the same input gives the same plan.
"""

from __future__ import annotations

import numpy as np

from coxswain.plan.degrees import least_degrees
from coxswain.plan.fill import Bins, Ints, pour, water_level
from coxswain.plan.gang import Gang, place_rings
from coxswain.plan.problem import Draft, Problem

TARGETS = (1.0, 1.03, 1.08, 1.2)  # times the lower bound


def makespan(problem: Problem) -> list[Draft]:
    order = np.argsort(-problem.lengths, kind="stable")
    count = int((problem.lengths > problem.capacity).sum())
    long, short = order[:count], order[count:]
    trials = [
        _trial(problem, long, short, factor * problem.lower_bound()) for factor in (TARGETS if count else TARGETS[:1])
    ]
    level, gang = min(trials, key=lambda trial: trial[0])
    return _schedule(problem, gang, short, level)


def _trial(problem: Problem, long: Ints, short: Ints, target: float) -> tuple[float, Gang]:
    """Rings for one target, and the makespan to expect of them."""
    reference = float(np.median(problem.speeds))
    degrees = least_degrees(problem, problem.lengths[long], target * reference)
    gang = place_rings(problem, long, degrees, target)
    lengths = problem.lengths[short]
    packs = -(-int(lengths.sum()) // problem.capacity)
    work = float(problem.cost.work_seconds(lengths).sum()) + packs * problem.cost.task
    return max(water_level(gang.loads, problem.speeds, work), float(gang.loads.max(initial=0.0))), gang


def _schedule(problem: Problem, gang: Gang, short: Ints, level: float) -> list[Draft]:
    """Rings and packs in the order in which they start."""
    bins = _bins(problem, gang, level, int(problem.lengths.min(initial=1)))
    poured = pour(problem, problem.lengths[short], bins)
    timed = [(ring.start, -len(ring.members), Draft(ring.members, (ring.sequence,))) for ring in gang.rings]
    order = np.lexsort((poured.pack, poured.bin))
    bin_, pack = poured.bin[order], poured.pack[order]
    cuts = np.flatnonzero((np.diff(bin_) != 0) | (np.diff(pack) != 0)) + 1
    work = problem.cost.work_seconds(problem.lengths[short])[order]
    clock: dict[int, float] = {}
    names = short[order].tolist()
    edges = [0, *cuts.tolist(), len(names)] if names else []
    totals = np.add.reduceat(work, edges[:-1]).tolist() if names else []
    for a, b, seconds in zip(edges[:-1], edges[1:], totals, strict=True):
        at = int(bin_[a])
        replica = int(bins.replica[at])
        start = clock.get(at, float(bins.start[at]))
        clock[at] = start + (seconds + problem.cost.task) / float(problem.speeds[replica])
        timed.append((start, -1, Draft((replica,), tuple(names[a:b]))))
    timed.sort(key=lambda t: (t[0], t[1], t[2].members[0]))
    return [draft for _, _, draft in timed]


def _bins(problem: Problem, gang: Gang, level: float, shortest: int) -> Bins:
    """Every replica's tail, and the gaps that can hold at least the shortest sequence."""
    least = problem.cost.pack_seconds([shortest])
    gaps = [g for g in gang.gaps if (g[2] - g[1]) * problem.speeds[g[0]] >= least]
    replica = np.array([*range(problem.replicas), *(g[0] for g in gaps)], dtype=np.int64)
    start = np.array([*gang.loads.tolist(), *(g[1] for g in gaps)])
    level_ = np.array([*gang.loads.tolist(), *(level - (g[2] - g[1]) for g in gaps)])
    limit = np.array([np.inf] * problem.replicas + [level] * len(gaps))
    return Bins(replica, level_, limit, start)
