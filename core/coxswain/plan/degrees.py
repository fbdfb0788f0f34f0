"""Chooses how many replicas a long sequence gets: the least number that meets a target time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import CostModel, Floats
from coxswain.plan.problem import Problem

Ints = NDArray[np.int64]
LATE = 32  # sequences, the longest ones, that are compared on the fastest replicas


@dataclass(frozen=True, slots=True)
class Range:
    """Degrees [low, high] of each sequence on one kind of link; empty where low > high.

    The ring's time falls along the range.
    """

    low: Ints
    high: Ints
    inside_node: bool


def ranges(problem: Problem, lengths: Ints) -> tuple[Range, Range]:
    """Returns the degrees within a node, and those beyond it."""
    least = -(-lengths // problem.capacity)
    parts = []
    for inside, first, last in (
        (True, 2, min(problem.node_size, problem.max_degree)),
        (False, problem.node_size + 1, problem.max_degree),
    ):
        best = np.minimum(_fastest(problem.cost, lengths, inside), last)
        low = np.maximum(least, first)
        high = np.minimum(np.maximum(low, best), last)
        parts.append(Range(low, high, inside))
    return parts[0], parts[1]


def _fastest(cost: CostModel, lengths: Ints, inside_node: bool) -> Ints:
    """Returns the degree beyond which a ring gets slower.

    Compute of a ring falls with D. Once blocks are so small that travel dominates (D > att*s/kv),
    the time is lin*s/D + att*(s/D)^2 + kv*s*(1 - 1/D). It grows with D where
    kv > lin + 2*att*s/D, which is beyond that point.
    """
    kv = cost.kv(inside_node)
    if kv <= cost.linear:
        return np.full_like(lengths, np.iinfo(np.int64).max)
    degrees: Ints = np.floor(2 * cost.attention * lengths / (kv - cost.linear)).astype(np.int64)
    return degrees


def least_degrees(problem: Problem, lengths: Ints, target: float) -> Ints:
    """Returns per sequence the least degree whose ring ends within `target` seconds at speed 1.

    Where no degree does, the fastest one.
    """
    inside, between = ranges(problem, lengths)
    best = np.zeros_like(lengths)
    best_seconds = np.full(lengths.shape, np.inf)
    for part in (inside, between):
        if (part.low > part.high).all():
            continue
        degree = _bisect(problem.cost, lengths, part, target)
        seconds = np.where(part.low <= part.high, _seconds(problem.cost, lengths, degree, part.inside_node), np.inf)
        better = (best_seconds > target) & (seconds < best_seconds)
        best[better], best_seconds[better] = degree[better], seconds[better]
    return best


def degrees_by(problem: Problem, lengths: Ints, seconds: float) -> Ints:
    """Returns the least degrees whose rings end within so many seconds on replicas of usual speed.

    Where none does, and speeds differ: the least that does on the fastest replicas, else the one that ends first.
    """
    usual = float(np.median(problem.speeds))
    degrees = least_degrees(problem, lengths, seconds * usual)
    speeds = np.sort(problem.speeds)[::-1][: problem.max_degree]
    if speeds[0] == speeds[-1]:
        return degrees
    late = np.flatnonzero(ring_seconds(problem, lengths, degrees) > seconds * usual)
    if late.size:
        degrees[late[:LATE]] = _on_fastest(problem, lengths[late[:LATE]], speeds, seconds)
    return degrees


def _on_fastest(problem: Problem, lengths: Ints, speeds: Floats, seconds: float) -> Ints:
    """Returns the least degrees whose rings end within so many seconds on the fastest replicas, else those that end first."""
    every = np.arange(1, speeds.size + 1)
    ends = ring_seconds(problem, lengths[:, None], every) / speeds
    ends[every < np.maximum(2, -(-lengths // problem.capacity))[:, None]] = np.inf
    good = ends <= seconds
    found: Ints = 1 + np.where(good.any(axis=1), good.argmax(axis=1), ends.argmin(axis=1))
    return found


def ring_seconds(problem: Problem, lengths: Ints, degrees: Ints) -> Floats:
    """Returns the seconds of rings at speed 1, within a node where the degree allows it."""
    s, d = lengths.astype(np.float64), degrees.astype(np.float64)
    inside, between = problem.cost.ring_seconds(s, d, True), problem.cost.ring_seconds(s, d, False)
    return np.where(degrees <= problem.node_size, inside, between)


def _bisect(cost: CostModel, lengths: Ints, part: Range, target: float) -> Ints:
    """Finds the least degree of the range that meets the target, else the range's end."""
    low, high = part.low, np.maximum(part.high, part.low)
    while (low < high).any():
        middle = (low + high) // 2
        good = _seconds(cost, lengths, middle, part.inside_node) <= target
        high = np.where(good, middle, high)
        low = np.where(good, low, np.minimum(middle + 1, high))
    return low


def _seconds(cost: CostModel, lengths: Ints, degrees: Ints, inside_node: bool) -> Floats:
    return cost.ring_seconds(lengths.astype(np.float64), degrees.astype(np.float64), inside_node)
