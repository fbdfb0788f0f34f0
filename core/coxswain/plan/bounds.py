"""A time before which no plan ends of any planner, also with rings of several sequences.

With equal speeds it is the cost model's. Where speeds differ, a ring is as slow as its slowest member, so the faster ones
lose time. A long sequence needs so many members that some loss cannot be avoided: if it shall end by T, its degree D and
its slowest member's speed v must satisfy seconds(D) / v <= T. The least loss is that of D neighbours in the order of
speeds. T is possible only if all work, that of long sequences with their least losses, fits into T x all speeds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import Floats
from coxswain.plan.problem import Problem

LONGEST = 16  # sequences whose losses count
MOST = 1024  # replicas: beyond, the table of losses would be too large
STEPS = 30  # bisections


def lower_bound(problem: Problem) -> float:
    """Seconds; never less than `Problem.lower_bound`."""
    plain, speeds = max(problem.lower_bound(), _by_kind(problem)), np.sort(problem.speeds)[::-1]
    if problem.replicas > MOST or speeds[0] == speeds[-1] or not problem.lengths.size:
        return plain
    longest = np.sort(problem.lengths)[::-1][:LONGEST]
    longest = longest[longest > problem.capacity]
    if not longest.size:
        return plain
    tables = [_ring_seconds(problem, int(s)) for s in longest]
    losses, work = _losses(speeds, problem.max_degree), problem.cost.least_work_seconds(longest)
    rest = plain_work(problem)

    def possible(seconds: float) -> bool:
        least = [_least_loss(losses, speeds, table, seconds) for table in tables]
        return rest + float((work * least).sum()) <= seconds * float(speeds.sum())

    low, high = plain, 2 * plain
    if possible(low):
        return low
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if possible(middle) else (middle, high)
    return low


def _by_kind(problem: Problem) -> float:
    """What only some kinds of replicas hold takes these alone; the longest sequence ends first on one of them."""
    kinds = [problem.kinds == kind for kind in range(int(problem.kinds.max()) + 1)]
    if len(kinds) == 1 or not problem.lengths.size:
        return 0.0
    degrees = [min(problem.max_degree, int(mine.sum())) for mine in kinds]
    holds = [int(problem.capacities[mine][0]) * most for mine, most in zip(kinds, degrees, strict=True)]
    work, longest, found, ends = problem.cost.least_work_seconds(problem.lengths), int(problem.lengths.max()), 0.0, []
    for mine, most, hold in zip(kinds, degrees, holds, strict=True):
        able = np.isin(problem.kinds, [k for k, other in enumerate(holds) if other > hold])
        if able.any():
            found = max(found, float(work[problem.lengths > hold].sum() / problem.speeds[able].sum()))
        if longest <= hold:
            capacity = int(problem.capacities[mine][0])
            ends.append(problem.cost.lower_bound([longest], problem.speeds[mine], capacity, most, problem.node_size))
    return max(found, min(ends))


def plain_work(problem: Problem) -> float:
    """All work and the least cost of its tasks, in seconds at speed 1."""
    packs = -(-int(problem.lengths.sum()) // problem.capacity)
    return float(problem.cost.least_work_seconds(problem.lengths).sum()) + packs * problem.cost.task


def _ring_seconds(problem: Problem, length: int) -> Floats:
    """Seconds of the sequence at each degree from 1, at speed 1, over whichever link is faster; inf: does not fit."""
    degrees = np.arange(1, problem.max_degree + 1, dtype=np.float64)
    s = np.full_like(degrees, length)
    inside, between = problem.cost.ring_seconds(s, degrees, True), problem.cost.ring_seconds(s, degrees, False)
    seconds: Floats = np.where(degrees <= problem.node_size, np.minimum(inside, between), between)
    seconds[: -(-length // problem.capacity) - 1] = np.inf
    return seconds


def _losses(speeds: Floats, most: int) -> Floats:
    """Row D - 1, column a: the least part lost, of the ring's own work, by D neighbours that begin at place a or before.

    `speeds` fall. inf: there are not so many.
    """
    sums, losses = np.concatenate([[0.0], np.cumsum(speeds)]), np.full((most, speeds.size), np.inf)
    for degree in range(1, most + 1):
        means = (sums[degree:] - sums[:-degree]) / degree
        losses[degree - 1, : means.size] = np.minimum.accumulate(means / speeds[degree - 1 :] - 1)
    losses[losses < 0] = 0.0  # rounding
    return losses


def _least_loss(losses: Floats, speeds: Floats, seconds: Floats, target: float) -> float:
    """Returns the least loss of a ring that ends by the target; inf: none does."""
    enough: NDArray[np.int64] = np.searchsorted(-speeds, -seconds / target, side="right")  # replicas that are so fast
    last = enough - np.arange(1, seconds.size + 1)
    fits = last >= 0
    return float(losses[np.flatnonzero(fits), last[fits]].min()) if fits.any() else np.inf
