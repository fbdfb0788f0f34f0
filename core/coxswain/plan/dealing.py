"""Deals sequences to kinds of replicas: rings need equal ones, so each kind is planned by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from math import fsum
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import Floats
from coxswain.layout import Layout
from coxswain.plan.degrees import least_degrees, ring_seconds
from coxswain.plan.pipelines.dispatch import end_of
from coxswain.plan.pipelines.operations import shares_of
from coxswain.plan.problem import Draft, Planner, Problem
from coxswain.plan.simulate import simulate

Ints = NDArray[np.int64]
EVEN = 1.02  # the last kind's end over the first one's: good enough not to deal again
LATEST = float(np.finfo(np.float64).max)  # seconds: any end is good


def by_kind(planner: Planner, problem: Problem, deals: int = 1) -> list[Draft]:
    """Deals the sequences to the kinds of replicas and lets the planner place those of each kind.

    Where one kind ends later than others, deals again by how much later than assumed each kind ended: so many deals at most.
    """
    if (problem.kinds == problem.kinds[0]).all():
        return planner(problem)
    members = [np.flatnonzero(problem.kinds == kind) for kind in range(int(problem.kinds.max()) + 1)]
    kinds, best = [_kind(problem, each) for each in members], list[_Placed]()

    @cache  # about half of all deals give a kind what an earlier one gave it
    def placed(kind: int, sequences: bytes) -> _Placed:
        return _place(planner, problem, members[kind], np.frombuffer(sequences, dtype=np.int64))

    for _ in range(deals):
        dealt, assumed = deal(problem, kinds)
        found = [placed(k, np.flatnonzero(dealt == k).tobytes()) for k in range(len(kinds))]
        ends = [each.end for each in found]
        best = found if not best or max(ends) < max(each.end for each in best) else best
        if max(ends) <= EVEN * min(ends):
            break
        kinds = [kind.ended(was, end) for kind, was, end in zip(kinds, assumed, ends, strict=True)]
    return [draft for *_, draft in sorted(chain.from_iterable(each.timed for each in best), key=itemgetter(0, 1))]


@dataclass(frozen=True, slots=True)
class Kind:
    """What one kind of replica makes of the sequences."""

    speed: float  # of all its replicas
    waits: float  # how many times a stage waits for the longest task: stages - 1 where they are equal
    work: list[float]  # seconds of each sequence on so many replicas of speed 1 as it needs, times these
    alone: list[float]  # seconds of each sequence as the only one, on as many members as it may have, in one stage
    later: float = 1.0  # times the end that work and waits alone give

    def end(self, work: float, waits: float, sequence: int) -> float:
        """When it ends with so much work, this sequence's with it, and waits of so many seconds for those before."""
        alone = self.alone[sequence]
        if alone == np.inf:
            return alone
        return max(self.later * (work / self.speed + max(waits, self.waits * alone)), (1 + self.waits) * alone)

    def ended(self, assumed: float, end: float) -> Kind:
        """The kind after a deal that ended at `end`, which work and waits alone had assumed earlier or later."""
        return replace(self, later=end / assumed) if assumed else self


@dataclass(frozen=True, slots=True)
class _Placed:
    """A kind's plan: each task with its wave and start, by the step's names, and when the last stage ends."""

    timed: list[tuple[int, float, Draft]]
    end: float


def _place(planner: Planner, problem: Problem, members: Ints, sequences: Ints) -> _Placed:
    part = _part(problem, members, sequences)
    drafts, timed = planner(part), list[tuple[int, float, Draft]]()
    for start, draft in zip(simulate(part, drafts).starts, drafts, strict=True):
        names = tuple(members[[*draft.members]].tolist()), tuple(sequences[[*draft.sequences]].tolist())
        timed.append((draft.wave, start, Draft(*names, draft.wave)))
    return _Placed(timed, end_of(part, drafts))


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
        layout=Layout(tuple(problem.layout.replicas[r] for r in members.tolist())),
        stages=problem.stages[members],
    )


def deal(problem: Problem, kinds: list[Kind]) -> tuple[Ints, list[float]]:
    """Returns the kind of replica for every sequence, and when each kind ends by its work and waits.

    Longest first, each goes to the kind that holds it and ends it first: by the work that it has and the fill and drain of
    its longest sequence, or by the time of the sequence alone.
    """
    taken, waits = [0.0] * len(kinds), [0.0] * len(kinds)
    dealt = np.zeros(problem.lengths.size, dtype=np.int64)
    for i in np.argsort(-problem.lengths, kind="stable").tolist():
        ends = [kind.end(taken[k] + kind.work[i], waits[k], i) for k, kind in enumerate(kinds)]
        dealt[i] = best = ends.index(min(ends))
        taken[best] += kinds[best].work[i]
        waits[best] = max(waits[best], kinds[best].waits * kinds[best].alone[i])
    return dealt, [mine / kind.speed + wait for kind, mine, wait in zip(kinds, taken, waits, strict=True)]


def _kind(problem: Problem, members: Ints) -> Kind:
    part = _part(problem, members, np.arange(problem.lengths.size))
    usual, through = float(np.median(part.speeds)), fsum(shares_of(Layout(part.layout.replicas[:1]), problem.loss)[0])
    fewest, most = _seconds(part, LATEST), _seconds(part, 0.0)
    return Kind(float(part.speeds.sum()), through - 1, (fewest[0] * fewest[1]).tolist(), (most[0] / usual).tolist())


def _seconds(part: Problem, target: float) -> tuple[Floats, Ints]:
    """Seconds of each sequence at speed 1 and its members: the fewest that end by `target`; inf where it does not fit."""
    seconds, degrees = part.cost.task + part.cost.work_seconds(part.lengths), np.ones_like(part.lengths)
    long = part.lengths > part.capacity
    holds = long & (part.lengths <= part.capacity * part.max_degree)
    seconds[long] = np.inf
    degrees[holds] = least_degrees(part, part.lengths[holds], target)
    seconds[holds] = ring_seconds(part, part.lengths[holds], degrees[holds])
    return seconds, degrees
