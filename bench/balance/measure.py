"""One step planned by several balances, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.balance.cases import Case
from coxswain.errors import Refused
from coxswain.plan.bounds import lower_bound
from coxswain.plan.planners import planner
from coxswain.plan.problem import Draft, Problem
from coxswain.plan.simulate import ring_bytes, simulate


@dataclass(frozen=True, slots=True)
class Figures:
    """One balance's plan of one step."""

    makespan: float  # seconds
    unbarred: float  # seconds, were its waves no barriers
    idle: float
    bytes_between: int  # nodes
    bytes_of_short: int  # that rings move of sequences that fit one replica
    cpu: float  # seconds of planning


@dataclass(frozen=True, slots=True)
class Sample:
    """One step: its bound, and the figures of each balance that can plan it."""

    case: Case
    seed: int
    bound: float  # seconds
    longest_of_mean: float  # seconds of the longest sequence at its least degree, over the mean work of a replica
    balances: dict[str, Figures]


def measure(case: Case, seed: int, balances: Sequence[str]) -> Sample:
    problem = case.problem(seed)
    found = {balance: _figures(problem, balance) for balance in balances}
    known = {balance: figures for balance, figures in found.items() if figures is not None}
    return Sample(case, seed, lower_bound(problem), _longest_of_mean(problem), known)


def _figures(problem: Problem, balance: str) -> Figures | None:
    """None where the balance cannot plan the step: a mesh that is wider than allowed."""
    begin = time.process_time()  # other work on the machine does not count
    try:
        drafts = planner(balance)(problem)
    except Refused:
        return None
    cpu = time.process_time() - begin
    timeline = simulate(problem, drafts)
    barred = any(draft.wave for draft in drafts)
    free = simulate(problem, [draft._replace(wave=0) for draft in drafts]) if barred else timeline
    between = ring_bytes(problem, drafts)[1]
    return Figures(
        timeline.makespan, free.makespan, timeline.idle_fraction, between, _bytes_of_short(problem, drafts), cpu
    )


def _bytes_of_short(problem: Problem, drafts: Iterable[Draft]) -> int:
    fits = problem.lengths <= problem.capacity
    short = (draft._replace(sequences=tuple(i for i in draft.sequences if fits[i])) for draft in drafts)
    return sum(ring_bytes(problem, [draft for draft in short if draft.sequences]))


def _longest_of_mean(problem: Problem) -> float:
    longest = int(problem.lengths.max())
    degree = -(-longest // problem.capacity)
    mean = float(np.sum(problem.cost.work_seconds(problem.lengths))) / problem.replicas
    return float(problem.cost.ring_seconds(float(longest), float(degree), degree <= problem.node_size)) / mean
