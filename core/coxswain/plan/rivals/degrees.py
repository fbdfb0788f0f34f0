"""Degrees that are powers of two, as several rivals have them, and times per sequence that add up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coxswain.errors import Refused
from coxswain.plan.problem import Problem

Floats = NDArray[np.float64]


def powers_of_two(problem: Problem) -> tuple[int, ...]:
    """Returns 1, 2, 4, ... up to the replicas and maxDegree; Refused where the greatest does not hold the longest."""
    most = min(problem.replicas, problem.max_degree)
    degrees = tuple(1 << k for k in range(most.bit_length()))
    longest = int(problem.lengths.max(initial=1))
    if longest > degrees[-1] * problem.capacity:
        raise Refused(
            "CapacityLost",
            f"{longest} tokens need more than {degrees[-1]} replicas, the greatest power of two within "
            f"{problem.replicas} replicas and maxDegree {problem.max_degree}: raise these or tokensPerReplica, or use "
            "balance Makespan",
        )
    return degrees


def seconds_at(problem: Problem, lengths: Floats, degree: int) -> Floats:
    """Returns the seconds of each sequence on neighbours, without the cost of a task.

    For a ring of several sequences their sum is an upper bound. Links are those inside nodes if all groups of
    the degree, which begin at its multiples, are.
    """
    if degree == 1:
        return problem.cost.work_seconds(lengths)
    groups = problem.nodes[: problem.replicas // degree * degree].reshape(-1, degree)
    inside = bool((groups == groups[:, :1]).all())
    return problem.cost.ring_seconds(lengths, np.full_like(lengths, degree), inside) - problem.cost.task
