"""Few replicas: rings of several sequences over equal groups, as a static mesh has them.

Rings of one sequence and packs of one replica leave replicas idle where a step has hardly more tasks than replicas. A ring of
several sequences divides them all, and costs one task. So where that ends the step earlier, short sequences share the rings of
long ones, against the rule that what fits one replica is never sent round.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

import numpy as np

from coxswain.plan.bounds import lower_bound
from coxswain.plan.fit import first_fit, next_fit
from coxswain.plan.problem import Draft, Problem
from coxswain.plan.simulate import seconds_of, simulate

FEW = 8  # replicas: with more of them a mesh ends later (by half at 1,024)
SEQUENCES = 8  # for each replica: with more of them packs are fine enough
GAIN = 1.01  # times earlier, else short sequences stay on one replica each


def or_mesh(problem: Problem, found: list[Draft]) -> list[Draft]:
    """Returns the plan that ends first: `found`, or a mesh where replicas are few and some sequences need several."""
    few = problem.replicas <= FEW and problem.lengths.size <= SEQUENCES * problem.replicas
    if not few or not (problem.lengths > problem.capacity).any():
        return found
    end = simulate(problem, found).makespan / GAIN
    if end <= lower_bound(problem):
        return found
    ends = [(simulate(problem, drafts).makespan, drafts) for drafts in meshes(problem)]
    return min([(end, found), *ends], key=itemgetter(0))[1]


def meshes(problem: Problem) -> Iterator[list[Draft]]:
    """Two plans for each degree from 2 on that divides the replicas and holds the longest sequence: packs in the order of the
    data, as `static` has them, and longest first."""
    lengths: list[int] = problem.lengths.tolist()
    least = -(-max(lengths, default=1) // problem.capacity)
    for degree in range(max(2, least), min(problem.replicas, problem.max_degree) + 1):
        if problem.replicas % degree == 0:
            groups = [tuple(group) for group in np.arange(problem.replicas).reshape(-1, degree).tolist()]
            for fit in (
                next_fit(lengths, range(len(lengths)), degree * problem.capacity),
                first_fit(lengths, degree * problem.capacity),
            ):
                yield _dealt(problem, groups, fit)


def _dealt(problem: Problem, groups: list[tuple[int, ...]], packs: list[tuple[int, ...]]) -> list[Draft]:
    """Gives packs, the one that takes longest first, to the group that ends first."""
    seconds = seconds_of(problem, [Draft(groups[0], pack) for pack in packs])
    speeds, ends, drafts = problem.speeds.tolist(), [0.0] * len(groups), list[Draft]()
    for k in sorted(range(len(packs)), key=lambda k: -seconds[k]):
        group = min(range(len(groups)), key=ends.__getitem__)
        drafts.append(Draft(groups[group], packs[k]))
        ends[group] += seconds[k] / min(speeds[r] for r in groups[group])
    return drafts
