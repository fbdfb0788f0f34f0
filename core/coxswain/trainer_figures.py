"""Numbers by trainer over the latest steps, and the words that name a slow one. Pure; times in seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import nan
from statistics import median_low
from typing import NamedTuple, Protocol

import msgspec

from coxswain.cost.error import LEAST_SECONDS
from coxswain.structs import prepare

WINDOW_STEPS = 20
SLOW = 1.5
"""Slowdown from which a trainer is named in words."""

FEWEST_STEPS = 5
"""Steps that words need: a single step may be slow by chance."""


class RankStep(NamedTuple):
    """One rank in one step, or the sum over several steps."""

    seconds: float  # of the whole step
    compute: float
    data_wait: float
    planned: float  # compute by the cost model


class TrainerFigures(msgspec.Struct, frozen=True):
    """A trainer's slowest rank over the latest steps. Means of a step."""

    trainer: int
    rank: int
    steps: int
    compute_seconds: float
    data_wait_seconds: float
    wait_seconds: float  # neither compute nor data: other ranks, reduction and update
    slowdown: float  # compute over planned compute, as a multiple of the median rank's; 0: unknown


class _Task(Protocol):
    @property
    def replicas(self) -> tuple[int, ...]: ...
    @property
    def start(self) -> float: ...
    @property
    def stop(self) -> float: ...


class Rank(Protocol):
    """A rank of a line of timings.jsonl."""

    @property
    def rank(self) -> int: ...
    @property
    def replica(self) -> int: ...
    @property
    def trainer(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def compute(self) -> float: ...
    @property
    def data_wait(self) -> float: ...
    @property
    def share(self) -> float: ...


Seat = tuple[int, int]  # trainer and rank
StepFigures = dict[Seat, RankStep]


def step_figures(planned: Iterable[_Task], ranks: Iterable[Rank]) -> StepFigures:
    """One step, from its line of timings.jsonl."""
    work: dict[int, float] = defaultdict(float)
    for task in planned:
        for replica in task.replicas:
            work[replica] += task.stop - task.start
    return {(r.trainer, r.rank): RankStep(r.seconds, r.compute, r.data_wait, work[r.replica] * r.share) for r in ranks}


def trainer_figures(steps: Sequence[StepFigures]) -> tuple[TrainerFigures, ...]:
    """The slowest trainer first. All steps have the same ranks."""
    seats = dict.fromkeys(seat for step in steps for seat in step)
    sums = {seat: RankStep(*map(sum, zip(*(step[seat] for step in steps), strict=True))) for seat in seats}
    pace = {seat: s.compute / s.planned for seat, s in sums.items() if min(s.planned, s.compute) >= LEAST_SECONDS}
    median = median_low(pace.values()) if pace else nan
    slowdowns = {seat: own / median for seat, own in pace.items()}
    found: dict[int, TrainerFigures] = {}
    for seat, total in sums.items():
        figures = _figures(seat, total, len(steps), slowdowns.get(seat, 0.0))
        found[seat[0]] = max(found.get(seat[0], figures), figures, key=_slowness)
    return tuple(sorted(found.values(), key=_slowness, reverse=True))


def _figures(seat: Seat, total: RankStep, steps: int, slowdown: float) -> TrainerFigures:
    wait = max(total.seconds - total.compute - total.data_wait, 0.0)
    return TrainerFigures(*seat, steps, total.compute / steps, total.data_wait / steps, wait / steps, slowdown)


def _slowness(figures: TrainerFigures) -> tuple[float, float, int]:
    return figures.slowdown, figures.compute_seconds + figures.data_wait_seconds, -figures.trainer


def slow_words(figures: Iterable[TrainerFigures], name: Callable[[int], str]) -> str:
    """Names slow trainers; empty: none is slow. `name` is that of a trainer's index."""
    slow = [(name(f.trainer), f"{f.slowdown:.1f} x") for f in figures if f.slowdown >= SLOW and f.steps >= FEWEST_STEPS]
    if not slow:
        return ""
    (first, factor), *others = slow
    more = [f"{trainer} {times}" for trainer, times in others[:2]]
    more += [f"{len(others) - 2} more"] if len(others) > 2 else []
    also = f"; also {', '.join(more)}" if more else ""
    return f"{first} computes {factor} as long as the median for the same work{also}"


prepare(__name__)
