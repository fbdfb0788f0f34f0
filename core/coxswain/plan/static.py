"""The static mesh: CP x DP with one CP for all, the least that holds the longest sequence."""

from __future__ import annotations

import numpy as np

from coxswain.plan.naive import best_fit
from coxswain.plan.problem import Draft, Problem


def static(problem: Problem) -> list[Draft]:
    """Best-fit packs of CP x C tokens, dealt to the DP groups in turn; every sequence is cut over the whole group."""
    longest = int(problem.lengths.max(initial=1))
    cp = _least_divisor(-(-longest // problem.capacity), problem.replicas)
    groups = problem.replicas // cp
    packs = best_fit(problem.lengths.tolist(), list(range(problem.lengths.size)), cp * problem.capacity)
    members = np.arange(groups * cp).reshape(groups, cp).tolist()
    return [Draft(tuple(members[k % groups]), pack) for k, pack in enumerate(packs)]


def _least_divisor(least: int, total: int) -> int:
    """The least degree that also divides the replicas, as a mesh must."""
    return next(d for d in range(least, total + 1) if total % d == 0)
