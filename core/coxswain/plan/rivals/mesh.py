"""The static mesh of context x data parallelism that several rivals run on."""

from __future__ import annotations

import numpy as np

from coxswain.errors import Refused
from coxswain.plan.problem import Problem


def mesh(problem: Problem) -> list[tuple[int, ...]]:
    """Returns the groups of a mesh, neighbours each: one degree for all, the least divisor that holds the longest."""
    longest = int(problem.lengths.max(initial=1))
    cp = _least_divisor(-(-longest // problem.capacity), problem.replicas)
    if cp > problem.max_degree:
        raise Refused(
            "CapacityLost",
            f"{longest} tokens need a mesh of {cp} replicas (a divisor of {problem.replicas}), but maxDegree is "
            f"{problem.max_degree}: raise it, raise tokensPerReplica, or use balance Makespan",
        )
    return [tuple(group) for group in np.arange(problem.replicas).reshape(-1, cp).tolist()]


def _least_divisor(least: int, total: int) -> int:
    """Returns the least degree that divides the replicas, as a mesh must."""
    return next(d for d in range(least, total + 1) if total % d == 0)
