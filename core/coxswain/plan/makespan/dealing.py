"""Deals sequences to kinds of replicas: rings need equal ones, so each kind is planned by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from coxswain.plan.makespan.degrees import least_degrees, ring_seconds
from coxswain.plan.problem import Draft, Planner, Problem
from coxswain.plan.simulate import simulate

Ints = NDArray[np.int64]
EVEN = 1.02  # the last kind's end over the first one's: good enough not to deal again


def by_kind(planner: Planner, problem: Problem, deals: int = 1) -> list[Draft]:
    """Deals the sequences to the kinds of replicas and lets the planner place those of each kind.

    Where one kind ends later than others, deals again by the speeds that the kinds reached: so many deals at most.
    """
    if (problem.kinds == problem.kinds[0]).all():
        return planner(problem)
    kinds = [np.flatnonzero(problem.kinds == kind) for kind in range(int(problem.kinds.max()) + 1)]
    speeds, best = [float(problem.speeds[members].sum()) for members in kinds], _Dealt([], [np.inf])
    for _ in range(deals):
        dealt = _deal(problem, kinds, speeds)
        found = _planned(planner, problem, kinds, dealt)
        best = min(best, found, key=_Dealt.end)
        if max(found.ends) <= EVEN * min(found.ends):
            break
        work = np.bincount(dealt, problem.cost.work_seconds(problem.lengths), len(kinds))
        reached = zip(work.tolist(), found.ends, speeds, strict=True)
        speeds = [done / end if done else speed for done, end, speed in reached]
    return best.drafts


@dataclass(frozen=True, slots=True)
class _Dealt:
    drafts: list[Draft]
    ends: list[float]  # of each kind

    def end(self) -> float:
        return max(self.ends)


def _planned(planner: Planner, problem: Problem, kinds: list[Ints], dealt: Ints) -> _Dealt:
    timed: list[tuple[int, float, Draft]] = []
    ends = []
    for kind, members in enumerate(kinds):
        sequences = np.flatnonzero(dealt == kind)
        part = _part(problem, members, sequences)
        drafts = planner(part)
        timeline = simulate(part, drafts)
        ends.append(timeline.makespan)
        for start, draft in zip(timeline.starts, drafts, strict=True):
            names = tuple(members[[*draft.members]].tolist()), tuple(sequences[[*draft.sequences]].tolist())
            timed.append((draft.wave, start, Draft(*names, draft.wave)))
    return _Dealt([draft for *_, draft in sorted(timed, key=itemgetter(0, 1))], ends)


def _part(problem: Problem, members: Ints, sequences: Ints) -> Problem:
    nodes = np.unique(problem.nodes[members], return_inverse=True)[1].reshape(-1)
    return replace(
        problem,
        lengths=problem.lengths[sequences],
        replicas=members.size,
        capacities=problem.capacities[members],
        speeds=problem.speeds[members],
        max_degree=min(problem.max_degree, members.size),
        node_size=int(np.bincount(nodes).max()),
        kinds=np.zeros(members.size, dtype=np.int64),
        nodes=nodes,
        stages=problem.stages[members],
    )


def _deal(problem: Problem, kinds: list[Ints], speed: list[float]) -> Ints:
    """Returns the kind of replica for every sequence. `speed`: of all replicas of each kind.

    Longest first, each goes to the kind that holds it and ends it first: by the work that it has, or by the time of the
    sequence alone on as many members as it may have.
    """
    work = problem.cost.work_seconds(problem.lengths).tolist()
    every = np.arange(problem.lengths.size)
    alone = np.stack([_alone(_part(problem, members, every)) for members in kinds]).T.tolist()
    taken, dealt = [0.0] * len(kinds), np.zeros_like(every)
    for i in np.argsort(-problem.lengths, kind="stable").tolist():
        ends = [max((taken[k] + work[i]) / speed[k], alone[i][k]) for k in range(len(kinds))]
        dealt[i] = best = ends.index(min(ends))
        taken[best] += work[i]
    return dealt


def _alone(part: Problem) -> NDArray[np.float64]:
    """Seconds of each sequence as the only one of a kind; inf where it does not fit."""
    seconds = part.cost.task + part.cost.work_seconds(part.lengths)
    long = part.lengths > part.capacity
    holds = long & (part.lengths <= part.capacity * part.max_degree)
    seconds[long] = np.inf
    seconds[holds] = ring_seconds(part, part.lengths[holds], least_degrees(part, part.lengths[holds], 0.0))
    return seconds / float(np.median(part.speeds))
