"""Makespan: long sequences get just enough replicas to meet a target time, short ones fill the rest.

The search tries a few factors of the lower bound as targets; each trial places all rings and packs.
Counts of trials, never seconds, limit the search, so the same input gives the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise, product
from operator import itemgetter

import numpy as np

from coxswain.cost.model import Floats
from coxswain.plan.bounds import lower_bound
from coxswain.plan.dealing import by_kind
from coxswain.plan.degrees import degrees_by, ring_seconds
from coxswain.plan.makespan.columns import are_few, place_columns
from coxswain.plan.makespan.loads import Ints
from coxswain.plan.makespan.meshes import or_mesh
from coxswain.plan.makespan.nested import block_sizes, place_nested
from coxswain.plan.makespan.packing import Bins, Packing, fill_bins, fit_bins
from coxswain.plan.makespan.rings import RingSchedule, place_rings
from coxswain.plan.makespan.speeds import rounded, ways
from coxswain.plan.problem import Draft, Problem
from coxswain.plan.simulate import simulate
from coxswain.plan.water_level import water_level

TARGETS = (1.0, 1.01, 1.02, 1.04, 1.08, 1.15, 1.3, 1.6, 2.0)  # times the lower bound
SHELVES = (1, 2, 3, 4, 6, 8)  # rings of 1/n of the target stack where whole ones fit badly
CLOSE = 1.01  # times the target: good enough to stop
MOSTLY = 0.75  # of the work in rings: whole blocks are tried first
TRIALS = [
    (t, n)
    for k in range(len(TARGETS) + len(SHELVES))
    for n, t in zip(SHELVES, TARGETS[k::-1], strict=False)
    if k < len(TARGETS)
]
BASES = (
    *((0, 1), (0, 2), (1, 1), (0, 1.5), (1, 2), (-1, 1), (2, 1), (1, 1.5), (2, 2), (0, 3)),
    *product((0, 1, 2), (1.25, 1.75, 2.5, 4)),
)
"""Places of base sizes after the first, and into how many parts the bound is cut: a ring shall end within one."""
RINGS = 2  # of a block of the first base size
MOST_TRIALS = 20
PLACED, PLACED_AT_LEAST = 1, 400  # rings of all trials: so many times the replicas and these
COLUMNS = (1.01, 1.02, 1.025, 1.03, 1.035, 1.04)  # times the lower bound: targets of columns
EXACT, FIT = 1.002, 4  # times such a target: good enough; packs are fitted where so many sequences a ring are short
GOOD = 1.03  # times the lower bound: of nested blocks good enough
LIKE = 1.03  # times the lower bound, with uneven speeds: good enough not to try another way
REACHED = (1.0, 1.05, 1.15)  # times what rings of least degrees need: targets where that is above the bound
ENOUGH = 1.045  # times the lower bound: then targets are not tried behind nested blocks, nor these behind targets
DEALS = 2  # of sequences to slow replicas by themselves and to all others, the second by what the first reached


@dataclass(frozen=True, slots=True)
class Trial:
    """Rings and packs for one target, and when the last replica is done."""

    schedule: RingSchedule
    bins: Bins
    packing: Packing
    makespan: float


def makespan(problem: Problem) -> list[Draft]:
    """Plans one step. Where speeds differ, in several ways; and never slower than a plan that knows of no speeds."""
    return or_mesh(problem, _sought(problem))


def _sought(problem: Problem) -> list[Draft]:
    if (problem.speeds == problem.speeds[0]).all():
        return _planned(problem)
    flat = _planned(replace(problem, speeds=np.ones(problem.replicas)))
    best = _heeding(rounded(problem), flat)
    return min(flat, best, key=lambda drafts: simulate(problem, drafts).makespan)


def _heeding(problem: Problem, best: list[Draft]) -> list[Draft]:
    """Tries one way after the other, the best first, until one can lose no more than the best plan so far."""
    bound, end = lower_bound(problem), simulate(problem, best).makespan
    for lost, way in ways(problem):
        if end > bound * max(LIKE, 1 + lost):
            drafts = by_kind(_planned, way, DEALS)
            end, best = min((end, best), (simulate(problem, drafts).makespan, drafts), key=itemgetter(0))
    return best


def _planned(problem: Problem) -> list[Draft]:
    order = np.argsort(-problem.lengths, kind="stable")
    count = int((problem.lengths > problem.capacity).sum())
    long, short = order[:count], order[count:]
    return drafts_of(search(problem, long, short), short)


def drafts_of(trial: Trial, short: Ints) -> list[Draft]:
    """Returns rings and packs by their starts."""
    rings, (packs, begins) = trial.schedule.rings, _packs(trial, short)
    drafts = [*(Draft(ring.members, (ring.sequence,)) for ring in rings), *packs]
    order = np.argsort(np.concatenate([[ring.start for ring in rings], begins]), kind="stable")
    return [drafts[k] for k in order.tolist()]


def search(problem: Problem, long: Ints, short: Ints) -> Trial:
    """Returns the best trial; most steps need one. Where nearly all work is in rings, columns and nested blocks come first."""
    rings, packs = (float(problem.cost.work_seconds(problem.lengths[part]).sum()) for part in (long, short))
    mostly = long.size > 0 and rings >= MOSTLY * (rings + packs)
    best = _columns(problem, long, short) if mostly and are_few(problem, long.size) else None
    if mostly and (best is None or best.makespan > GOOD * problem.lower_bound()):
        best = _blocks(problem, long, short, best)
    enough = ENOUGH * problem.lower_bound()
    if best is None or best.makespan > enough:
        best = _targets(problem, long, short, best)
    if long.size and not mostly and best.makespan > enough:
        best = _blocks(problem, long, short, best) or best
    return best


def _columns(problem: Problem, long: Ints, short: Ints) -> Trial | None:
    """Tries columns that end by one target after another, until one plan does."""
    bound = problem.lower_bound()
    for target in COLUMNS:
        schedule = place_columns(problem, long, short, target * bound)
        best = _filled(problem, schedule, short, np.inf, fit=short.size <= FIT * long.size) if schedule else None
        if best and best.makespan <= target * bound * EXACT:
            return best
    return None


def _blocks(problem: Problem, long: Ints, short: Ints, best: Trial | None) -> Trial | None:
    """Tries nested blocks of several base sizes, and rings of a part of the bound, until one is good enough."""
    bound = problem.lower_bound()
    for size, part in _bases(problem, long.size)[: _tries(problem, long.size + short.size // 8)]:
        give_up = best.makespan if best else np.inf
        schedule = place_nested(problem, long, short, size, bound / part, give_up)
        if schedule is not None:
            best = _filled(problem, schedule, short, give_up, fit=short.size <= long.size) or best
        if best and best.makespan <= GOOD * bound:
            break
    return best


def _tries(problem: Problem, sequences: int) -> int:
    """How many trials may place so many sequences each: one or more."""
    uneven = bool((problem.speeds != problem.speeds[0]).any())  # takes longer to place
    budget = PLACED * (problem.replicas + PLACED_AT_LEAST) // (max(1, sequences) * (1 + uneven))
    return 1 + min(MOST_TRIALS, budget)


def _bases(problem: Problem, rings: int) -> list[tuple[int, float]]:
    """Base sizes and parts of the bound to try: first the least size that holds all that a node can, in some rings each."""
    sizes = block_sizes(problem)
    least = min(problem.node_size, -(-int(problem.lengths.max()) // problem.capacity))
    enough = RINGS * problem.replicas
    first = next((k for k, size in enumerate(sizes) if size >= least and rings * size >= enough), len(sizes) - 1)
    near = {k: sizes[first + k] for k in (-1, 0, 1, 2) if 0 <= first + k < len(sizes)}
    return [(near[k], part) for k, part in BASES if k in near]


def _targets(problem: Problem, long: Ints, short: Ints, best: Trial | None) -> Trial:
    """Tries targets. One above the best makespan cannot help."""
    bound, tried = problem.lower_bound(), set[tuple[float, bytes]]()
    most = _tries(problem, long.size)
    exact = bool((problem.speeds == problem.speeds[0]).all())  # else nothing ends at the bound itself
    for target, shelves in TRIALS[not exact :] if long.size else TRIALS[:1]:
        if best and len(tried) >= most:
            break
        if best and best.makespan <= target * bound * CLOSE:
            continue
        degrees = degrees_by(problem, problem.lengths[long], target * bound / shelves)
        if (target, degrees.tobytes()) not in tried:
            if best and _needed(problem, long, short, degrees) > target * bound * CLOSE:
                continue
            tried.add((target, degrees.tobytes()))
            best = _trial(problem, long, short, degrees, target * bound, best) or best
    assert best is not None  # the first trial never gives up
    return _in_reach(problem, long, short, best) if long.size else best


def _in_reach(problem: Problem, long: Ints, short: Ints, best: Trial) -> Trial:
    """Tries what rings of the least degrees need as a target, where slow links put the bound out of reach.

    A ring that misses its target is widened, so that rings which miss it whatever their degree send more than they gain.
    """
    lengths = problem.lengths[long]
    least = _needed(problem, long, short, -(-lengths // problem.capacity))
    if least <= ENOUGH * problem.lower_bound():
        return best
    for factor in REACHED[: _tries(problem, long.size)]:
        target = factor * least
        if best.makespan > CLOSE * target:
            best = _trial(problem, long, short, degrees_by(problem, lengths, target), target, best) or best
    return best


def _needed(problem: Problem, long: Ints, short: Ints, degrees: Ints) -> float:
    """Seconds until rings of these degrees and the short sequences are done, if all replicas are always busy."""
    lengths = problem.lengths[long]
    rings = float((ring_seconds(problem, lengths, degrees) * degrees).sum())
    return (rings + float(problem.cost.work_seconds(problem.lengths[short]).sum())) / float(problem.speeds.sum())


def _trial(
    problem: Problem, long: Ints, short: Ints, degrees: Ints, target: float, rival: Trial | None
) -> Trial | None:
    """Places rings of these degrees or more to end by `target`, then packs.

    None if that does not end before the rival.
    """
    give_up = rival.makespan if rival else np.inf
    schedule = place_rings(problem, long, degrees, target, give_up)
    return None if schedule is None else _filled(problem, schedule, short, give_up)


def _filled(problem: Problem, schedule: RingSchedule, short: Ints, give_up: float, fit: bool = False) -> Trial | None:
    """Adds packs to the rings. None if the last one does not end before `give_up`.

    `fit`: the rings leave no gaps, so packs go just where there is room for them.
    """
    lengths = problem.lengths[short]
    bins, top = _bins(problem, schedule, lengths)
    packing = fit_bins(problem, lengths, bins, top) if fit else fill_bins(problem, lengths, bins)
    stop = float(packing.level[: problem.replicas].max())
    return Trial(schedule, bins, packing, stop) if stop < give_up else None


def _bins(problem: Problem, schedule: RingSchedule, lengths: Ints) -> tuple[Bins, float]:
    """Lists every replica's tail first, then the gaps that could hold the shortest sequence; and the level to reach."""
    packs = -(-int(lengths.sum()) // problem.capacity)
    work = float(problem.cost.work_seconds(lengths).sum()) + packs * problem.cost.task
    level = max(water_level(schedule.loads, problem.speeds, work), float(schedule.loads.max()))
    least = problem.cost.pack_seconds(lengths[-1:])
    gaps, room = schedule.gaps, schedule.gaps.stop - schedule.gaps.start
    use = room * problem.speeds[gaps.replica] >= least
    bins = Bins(
        replica=np.concatenate([np.arange(problem.replicas), gaps.replica[use]]),
        start=np.concatenate([schedule.loads, gaps.start[use]]),
        level=np.concatenate([schedule.loads, level - room[use]]),
        limit=np.concatenate([np.full(problem.replicas, np.inf), np.full(int(use.sum()), level)]),
    )
    return bins, level


def _packs(trial: Trial, short: Ints) -> tuple[list[Draft], Floats]:
    """Returns the packs, bin by bin, and the start of each one's bin: sorted by it they keep their order."""
    order = np.lexsort((trial.packing.pack, trial.packing.bin))
    bins, packs, names = trial.packing.bin[order], trial.packing.pack[order], tuple(short[order].tolist())
    first = np.flatnonzero(np.diff(bins, prepend=-1) | np.diff(packs, prepend=-1))
    alone = [(replica,) for replica in range(trial.schedule.loads.size)]
    edges = pairwise([*first.tolist(), len(names)])
    replicas = trial.bins.replica[bins[first]].tolist()
    drafts = [Draft(alone[replica], names[a:b]) for replica, (a, b) in zip(replicas, edges, strict=True)]
    return drafts, trial.bins.start[bins[first]]
