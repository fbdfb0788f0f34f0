"""What a worker that leaves a world reports of the step that broke off: only one on which all ranks have agreed."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import msgspec
import pytest
import torch
from msgspec import UNSET

from coxswain.config import OptimizerConfig
from coxswain.layout import Device, uniform_layout
from coxswain.wire import StepReport, Totals, World
from coxswain_train.engine.engine import StepResult
from coxswain_train.live.state import Cut, Finished, LiveState, PendingStep
from coxswain_train.parallel.zero1 import GlobalStats
from coxswain_train.worker.reports import step_report
from tests.step_samples import plan
from tests.unit import report_samples
from tests.unit.living_samples import STATS, pending, state_of
from tests.unit.worker_fakes import DELIVERED, BrokenOff, FakeEngine, Running

AGREED = pending(8, STATS)
UPDATED = Finished(8, 1.5)
PARTS = ["saver", "prefetcher", "feed", "once"]  # that are closed, in order


def cut(step: int, **changes: Any) -> Cut:
    return Cut(1, 2, step, state_of(), **changes)


class BreaksOff(FakeEngine):
    """Leaves `live` as `found` by its step, and breaks off there or ends it."""

    def __init__(self, live: LiveState, found: LiveState, breaks: bool) -> None:
        self._live, self._found, self._breaks = live, found, breaks

    def step(self, work: Any, began: float) -> StepResult:
        self._live.current, self._live.unreported = self._found.current, self._found.unreported
        if self._breaks:
            raise BrokenOff
        return super().step(work, began)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Callable[[LiveState, int, bool], list[Any]]:
    """What the worker of rank 2 does in order as it leaves amid a step, or behind it."""

    def leave(found: LiveState, step: int, breaks: bool = True) -> list[Any]:
        live, layout = LiveState(), uniform_layout([Device(0, device) for device in range(3)], 1)
        world = World(1, step, layout, layout.ranks(), ("t",), ())
        job = report_samples.job(optimizer=OptimizerConfig(learning_rate=0.25, schedule="Constant"))
        engine = BreaksOff(live, found, breaks)
        return Running(monkeypatch, job, world, lambda *_: engine, rank=2, plans=(plan(step),), live=live).run()

    return leave


@pytest.mark.parametrize(
    "live",
    [LiveState(cut(8, pending=AGREED)), LiveState(cut(9, agreed=STATS), unreported=UPDATED)],
    ids=["before the update", "behind it"],
)
def test_a_step_that_breaks_off_behind_the_vote_is_reported_with_what_all_have_agreed_on(
    left: Callable[..., list[Any]], live: LiveState
) -> None:
    """No rank computes it again. The snapshot of a save is settled before the next world changes the state."""
    *parts, (path, step, report), flush = left(live, 8)
    assert (parts, flush) == (PARTS, "flush")
    assert (path, step, report.totals) == ("/v1/reports", 8, Totals(STATS.loss_sum, STATS.delivered))
    expected = StepReport(
        1, 8, 2, 1.5, DELIVERED, STATS.norm, 0.25, 0.0, 0.0, 0.0, 0.0, ended=report.ended, totals=report.totals
    )
    assert report == expected


@pytest.mark.parametrize(
    ("live", "step"),
    [
        (LiveState(), 8),
        (LiveState(cut(8)), 8),
        (LiveState(cut(8, pending=pending(8))), 8),
        (LiveState(cut(8, pending=AGREED)), 9),
        (LiveState(cut(9, agreed=STATS), unreported=UPDATED), 9),  # which the change to this world has updated
        (LiveState(cut(9), unreported=UPDATED), 8),
    ],
)
def test_a_step_without_a_vote_is_not_reported_nor_one_step_as_another(
    left: Callable[..., list[Any]], live: LiveState, step: int
) -> None:
    assert left(live, step) == [*PARTS, "flush"]


def test_a_step_that_has_ended_is_reported_once(left: Callable[..., list[Any]]) -> None:
    report, *rest = left(LiveState(cut(8, pending=AGREED)), 8, False)
    assert (report[:2], rest) == (("/v1/reports", 8), [*PARTS, "flush"])


INFINITE = GlobalStats(inf, 2.5)


def test_a_report_of_a_loss_that_is_not_finite_can_be_read_though_the_gradient_is_finite(
    left: Callable[..., list[Any]],
) -> None:
    """The coordinator ends the job by it, as Diverged."""
    live = LiveState(cut(8, pending=PendingStep(8, torch.ones(6), None, inf, INFINITE)))
    broke_off = next(said[2] for said in left(live, 8) if said[0] == "/v1/reports")
    computed = step_report(plan(8), 2, StepResult(inf, 2.5, 0.25, 1.0, 0.0, (), agreed=INFINITE), DELIVERED, 1.0, 0.0)
    for report in (broke_off, computed):
        read = msgspec.json.decode(msgspec.json.encode(report), type=StepReport)
        assert (read.loss_sum, read.gradient_norm, read.totals) == (None, 2.5, UNSET)
