"""A time before which no plan of a step ends on pipelines, and the bubble that its longest tasks leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import fsum

import numpy as np

from coxswain.plan.problem import Problem


def pipeline_bound(problem: Problem, shares: Sequence[Sequence[float]]) -> float:
    """Returns the bound for replicas of these kinds: of each, what its stages take of the slowest one's time.

    Three claims. A slowest stage does all work of its replica; before its first forward that task goes through the stages
    before, and after its last backward that one goes back through them: whichever they are, both take together at least
    as long as the shortest task. The longest sequence goes through all stages and back, at its best degree. And of sequences
    that need more than half of the replicas, no two are at one stage at once.
    """
    if not problem.lengths.size:
        return 0.0
    before = min(fsum(mine[: _slowest(mine)]) for mine in shares)
    spread = _spread(problem) + before * _shortest(problem)
    through = min(fsum(mine) for mine in shares)
    return max(spread, _alone(problem, int(problem.lengths.max())) * through, _crowd(problem, before))


def _alone(problem: Problem, length: int) -> float:
    """Seconds of one sequence at its best degree on the fastest replicas."""
    return replace(problem, lengths=np.array([length])).lower_bound()


def _crowd(problem: Problem, before: float) -> float:
    """Sequences of which any two share a replica, one after another, and the shortest of them through the stages before."""
    crowd = problem.lengths[problem.lengths * 2 > problem.capacity * problem.replicas]
    each = [_alone(problem, length) for length in crowd.tolist()]
    return fsum(each) + before * min(each, default=0.0)


def _slowest(shares: Sequence[float]) -> int:
    """The last of the slowest stages."""
    return max(at for at, share in enumerate(shares) if share == max(shares))


def _spread(problem: Problem) -> float:
    cost, packs = problem.cost, -(-int(problem.lengths.sum()) // problem.capacity)
    return (float(cost.least_work_seconds(problem.lengths).sum()) + cost.task * packs) / float(problem.speeds.sum())


def _shortest(problem: Problem) -> float:
    """Seconds of any task at least: as if it had the shortest sequence alone, and a ring had its work to share and no other."""
    least = float(problem.cost.least_work_seconds(problem.lengths.min())) / problem.max_degree
    return (problem.cost.task + least) / float(problem.speeds.max())


def ideal_bubble(stages: int, tasks: float) -> float:
    """The idle share of a pipeline that runs so many equal tasks."""
    return (stages - 1) / (tasks + stages - 1)


def ideal_bubble_of(problem: Problem) -> float:
    """The idle share of pipelines of p equal stages that each wait p - 1 times for their longest task, and for nothing else.

    That is a full pack, or the ring of the longest sequence over all replicas if it takes longer: over fewer replicas a
    ring takes as many replica-seconds. With full packs alone it is `ideal_bubble`. It is no bound: see docs/design.
    """
    cost, every = problem.cost, min(problem.max_degree, problem.replicas)
    packs = int(problem.lengths.sum()) / problem.capacity
    work = float(cost.work_seconds(problem.lengths).sum()) + cost.task * packs
    longest, inside = float(problem.lengths.max()), every <= problem.node_size
    ring = every * cost.ring_seconds(longest, float(every), inside) if longest > problem.capacity else 0.0
    waits = (int(problem.stages.max()) - 1) * max(problem.replicas * work / packs, ring)
    return waits / (work + waits)
