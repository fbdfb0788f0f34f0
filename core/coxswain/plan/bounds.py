"""A time before which no plan ends of any planner, also with rings of several sequences.

A long sequence that shall end by T needs a degree D and a slowest member of speed v with seconds(D) / v <= T. Three claims
follow. Where speeds differ, a ring is as slow as its slowest member, so the faster ones lose time, at the least as much as
D neighbours in the order of speeds: T is possible only if all work, that of long sequences with their least losses, fits
into T x all speeds. Of sequences that each need more than a (k + 1)-th of all replicas, at most k run at once: what
they compute one after another, each at its best degree, must fit into k x T. And those that need more than a half cannot be
short and lose little: for any price of a second, the sum of both claims, each ring at the degree and speed of the least sum.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from coxswain.cost.model import CostModel, Floats
from coxswain.plan.problem import Problem

LONGEST = 16  # sequences whose losses count
MOST = 1024  # replicas: beyond, the table of losses would be too large
STEPS = 30  # bisections
PRICES = np.array([0.05, 0.1, 0.2, 0.3, 0.5, 1.0])  # of a second, as parts of all speeds
FREE_GBPS = 1e30  # links that cost nothing


def lower_bound(problem: Problem) -> float:
    """Seconds; never less than `Problem.lower_bound`."""
    plain, speeds = max(problem.lower_bound(), _by_kind(problem)), np.sort(problem.speeds)[::-1]
    longest = np.sort(problem.lengths)[::-1][:LONGEST]
    longest = longest[longest > problem.capacity]
    if problem.replicas > MOST or not longest.size:
        return plain
    rings, low, high = _Rings(problem, longest, speeds), plain, 2 * plain
    if rings.fit(low):
        return low
    while not rings.fit(high):
        low, high = high, 2 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if rings.fit(middle) else (middle, high)
    return low


class _Rings:
    """The longest sequences as rings on replicas of these speeds, which fall."""

    def __init__(self, problem: Problem, longest: NDArray[np.int64], speeds: Floats) -> None:
        cost, fastest, c = problem.cost, speeds[: problem.max_degree], problem.cost.constants
        free = replace(cost, constants=structs.replace(c, inside_node_gbps=FREE_GBPS, between_nodes_gbps=FREE_GBPS))
        self._seconds, self._speeds = _ring_seconds(problem, cost, longest), speeds  # row: sequence, column: degree - 1
        self._computed = _ring_seconds(problem, free, longest) - cost.task
        self._ends, self._shortest = self._seconds / fastest, (self._computed / fastest).min(axis=1)
        self._losses = _losses(speeds, problem.max_degree) if speeds[0] > speeds[-1] else None
        self._work, self._rest = cost.least_work_seconds(longest), plain_work(problem)
        self._prices = dict[int, Floats]()

    def fit(self, seconds: float) -> bool:
        """Whether the claims allow a plan that ends by then."""
        good, count = self._ends <= seconds, self._speeds.size
        if not good.any(axis=1).all():
            return False
        degrees = good.argmax(axis=1) + 1
        crowds = [float(self._shortest[degrees * (k + 1) > count].sum()) / k for k in range(1, degrees.size + 1)]
        return max(crowds) <= seconds and (
            self._losses is None or self._lose(self._losses, seconds, degrees * 2 > count)
        )

    def _lose(self, losses: Floats, seconds: float, crowd: NDArray[np.bool_]) -> bool:
        least = _least_losses(losses, self._speeds, self._seconds, seconds) * self._work
        room = seconds * float(self._speeds.sum())
        if self._rest + float(least.sum()) > room:
            return False
        both = [self._price(losses, i) for i in np.flatnonzero(crowd).tolist()]
        others = self._rest + float(least[~crowd].sum())
        return not both or bool((others + np.sum(both, axis=0) <= room * (1 + PRICES)).all())

    def _price(self, losses: Floats, i: int) -> Floats:
        """The least sum of what a ring of the sequence loses and of its seconds, at each price of a second."""
        if i not in self._prices:
            last = np.arange(len(losses))[:, None] + np.arange(self._speeds.size)
            slowest = self._speeds[np.minimum(last, self._speeds.size - 1)]
            took, lost = self._computed[i, :, None] / slowest, self._work[i] * losses
            usable = np.isfinite(took) & np.isfinite(lost)
            took, lost = took[usable] * float(self._speeds.sum()), lost[usable]
            self._prices[i] = np.array([(lost + price * took).min() for price in PRICES])
        return self._prices[i]


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


def _ring_seconds(problem: Problem, cost: CostModel, lengths: NDArray[np.int64]) -> Floats:
    """Seconds of each sequence at each degree from 1, at speed 1, over whichever link is faster; inf: does not fit."""
    degrees, s = np.arange(1, problem.max_degree + 1, dtype=np.float64), lengths[:, None].astype(np.float64)
    inside, between = cost.ring_seconds(s, degrees, True), cost.ring_seconds(s, degrees, False)
    seconds: Floats = np.where(degrees <= problem.node_size, np.minimum(inside, between), between)
    return np.where(degrees < -(-lengths // problem.capacity)[:, None], np.inf, seconds)


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


def _least_losses(losses: Floats, speeds: Floats, seconds: Floats, target: float) -> Floats:
    """Returns the least loss of each sequence's ring that ends by the target; inf: none does. `seconds`: a row a sequence."""
    enough: NDArray[np.int64] = np.searchsorted(-speeds, -seconds / target, side="right")  # replicas that are so fast
    degree = np.arange(seconds.shape[1])
    last = enough - degree - 1
    found: Floats = np.where(last >= 0, losses[degree, np.maximum(last, 0)], np.inf).min(axis=1)
    return found
