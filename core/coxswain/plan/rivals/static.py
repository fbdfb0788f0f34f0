"""The static mesh: CP x DP with one CP for all, the least that holds the longest sequence."""

from __future__ import annotations

from coxswain.plan.fit import next_fit
from coxswain.plan.problem import Draft, Problem
from coxswain.plan.rivals.mesh import mesh


def static(problem: Problem) -> list[Draft]:
    """Fills packs of CP x C tokens in the order of the data and deals them to the DP groups.

    Every sequence is cut over the whole group; all those of a pack are one ring.
    """
    groups = mesh(problem)
    lengths: list[int] = problem.lengths.tolist()
    packs = next_fit(lengths, range(len(lengths)), len(groups[0]) * problem.capacity)
    return [Draft(groups[k % len(groups)], pack) for k, pack in enumerate(packs)]
