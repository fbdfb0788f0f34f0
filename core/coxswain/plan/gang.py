"""Rings onto replicas: a ring needs all its members at once, so the longest go first, and one that would stick out is widened."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coxswain.cost.model import Floats
from coxswain.plan.ground import Ground, Ints
from coxswain.plan.problem import Problem


@dataclass(frozen=True, slots=True)
class Ring:
    """One long sequence with its replicas and its planned time."""

    sequence: int
    members: tuple[int, ...]
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class Gang:
    """All rings, when each replica has done its last one, and the gaps (replica, start, stop) that replicas wait in."""

    rings: tuple[Ring, ...]
    loads: Floats
    gaps: tuple[tuple[int, float, float], ...]


def place_rings(problem: Problem, sequences: Ints, degrees: Ints, target: float) -> Gang:
    """Longest duration first, each as soon as its members can; a ring that would end after the target gets more of them."""
    seconds = _seconds(problem, problem.lengths[sequences], degrees)
    ground = Ground(problem)
    flat = ground.loads.reshape(-1)
    rings: list[Ring] = []
    gaps: list[tuple[int, float, float]] = []
    for k in np.lexsort((sequences, -degrees, -seconds)).tolist():
        members, stop = _place(
            problem, ground, int(problem.lengths[sequences[k]]), int(degrees[k]), float(seconds[k]), target
        )
        before = flat[members]
        start, names = float(before.max()), tuple(members.tolist())
        gaps += [(r, free, start) for r, free in zip(names, before.tolist(), strict=True) if free < start]
        rings.append(Ring(int(sequences[k]), names, start, stop))
        ground.occupy(members, stop)
    return Gang(tuple(rings), flat[: problem.replicas].copy(), tuple(gaps))


def _place(
    problem: Problem, ground: Ground, length: int, degree: int, seconds: float, target: float
) -> tuple[Ints, float]:
    """Members, and when the ring ends on them."""
    members = ground.choose(degree, seconds)
    stop = ground.end(members, seconds)
    if stop <= target:
        return members, stop
    wider, shorter = _widen(problem, ground, length, degree, seconds, target)
    if wider > degree:
        other = ground.choose(wider, shorter)
        other_stop = ground.end(other, shorter)
        if other_stop < stop:
            return other, other_stop
    return members, stop


def _widen(
    problem: Problem, ground: Ground, length: int, degree: int, seconds: float, target: float
) -> tuple[int, float]:
    """The least greater degree, in a node or of whole nodes, that ends by the target; else the one that ends first."""
    inside, nodes = ground.starts(seconds)
    degrees = np.concatenate([np.arange(1, ground.size + 1), np.arange(2, nodes.size + 1) * ground.size])
    starts = np.concatenate([inside, nodes[1:]])
    possible = (degrees > degree) & (degrees <= problem.max_degree) & np.isfinite(starts)
    if not possible.any():
        return degree, seconds
    degrees, starts = degrees[possible], starts[possible]
    took = _seconds(problem, np.full_like(degrees, length), degrees)
    ends = starts + took / ground.usual
    best = int((ends <= target).argmax()) if (ends <= target).any() else int(ends.argmin())
    return int(degrees[best]), float(took[best])


def _seconds(problem: Problem, lengths: Ints, degrees: Ints) -> Floats:
    s, d = lengths.astype(np.float64), degrees.astype(np.float64)
    inside, between = problem.cost.ring_seconds(s, d, True), problem.cost.ring_seconds(s, d, False)
    return np.where(degrees <= problem.node_size, inside, between)
