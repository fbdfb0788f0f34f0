"""The static mesh: CP x DP with one CP for all, the least that holds the longest sequence."""

from __future__ import annotations

import numpy as np

from coxswain.errors import Refused
from coxswain.plan.problem import Draft, Problem


def static(problem: Problem) -> list[Draft]:
    """Fills packs of CP x C tokens in the order of the data and deals them to the DP groups.

    Every sequence is cut over the whole group; all those of a pack are one ring.
    """
    longest = int(problem.lengths.max(initial=1))
    cp = _least_divisor(-(-longest // problem.capacity), problem.replicas)
    groups = problem.replicas // cp
    if cp > problem.max_degree:
        raise Refused(
            "CapacityLost",
            f"{longest} tokens need a mesh of {cp} replicas (a divisor of {problem.replicas}), but maxDegree is "
            f"{problem.max_degree}: raise it, raise tokensPerReplica, or use balance Makespan",
        )
    packs = _next_fit(problem.lengths.tolist(), cp * problem.capacity)
    members = np.arange(groups * cp).reshape(groups, cp).tolist()
    return [Draft(tuple(members[k % groups]), pack) for k, pack in enumerate(packs)]


def _next_fit(lengths: list[int], capacity: int) -> list[tuple[int, ...]]:
    packs: list[list[int]] = []
    room = 0
    for i, s in enumerate(lengths):
        if s > room:
            packs.append([])
            room = capacity
        packs[-1].append(i)
        room -= s
    return [tuple(pack) for pack in packs]


def _least_divisor(least: int, total: int) -> int:
    """Returns the least degree that divides the replicas, as a mesh must."""
    return next(d for d in range(least, total + 1) if total % d == 0)
