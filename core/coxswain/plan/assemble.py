"""Makes a placement of a planner's drafts: global order, slices and times."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import UNSET

from coxswain.plan.bounds import lower_bound
from coxswain.plan.chunks import ring_slices
from coxswain.plan.head_groups import group_size
from coxswain.plan.problem import Draft, Problem
from coxswain.plan.simulate import simulate
from coxswain.plan.values import Placement, Slice, Task


def assemble(problem: Problem, balance: str, drafts: list[Draft]) -> Placement:
    """Returns the placement without operations; its times are the simulation's."""
    timeline = simulate(problem, drafts)
    lengths: list[int] = problem.lengths.tolist()
    tasks = tuple(
        _task(problem, i, lengths, draft, seconds)
        for i, (draft, seconds) in enumerate(zip(drafts, timeline.seconds, strict=True))
    )
    return Placement(
        balance=balance,
        replicas=problem.replicas,
        capacity=problem.capacity,
        tasks=tasks,
        operations=(),
        makespan_seconds=timeline.makespan,
        lower_bound_seconds=lower_bound(problem),
        work_seconds=timeline.work,
        idle_fraction=timeline.idle_fraction,
    )


def _task(problem: Problem, index: int, lengths: list[int], draft: Draft, seconds: float) -> Task:
    slices, wave = _slices(lengths, draft), draft.wave or UNSET
    if len(draft.members) == 1:
        return Task(index, "pack", draft.members, slices, seconds, wave)
    size = group_size(problem.cost, problem.lengths[list(draft.sequences)], problem.nodes[list(draft.members)].tolist())
    return Task(index, "ring", draft.members, slices, seconds, wave, size if size > 1 else UNSET)


def _slices(lengths: list[int], draft: Draft) -> tuple[Slice, ...]:
    if len(draft.members) == 1:
        (replica,) = draft.members
        return tuple([Slice(replica, i, 0, lengths[i]) for i in draft.sequences])
    return tuple(ring_slices(draft.sequences, lengths, draft.members))


def digest(placement: Placement) -> str:
    """Hashes the tasks: equal on all ranks that follow the same plan."""
    return "sha256:" + hashlib.sha256(msgspec.json.encode(placement.tasks)).hexdigest()
