"""What a worker that leaves a world reports of the step that broke off: only one on which all ranks have agreed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coxswain.config import OptimizerConfig
from coxswain.wire import StepReport, Totals
from coxswain_train.live.state import Cut, Finished, LiveState
from coxswain_train.worker.assignments import Assignment
from coxswain_train.worker.worker import Worker
from tests.step_samples import plan
from tests.unit.living_samples import STATS, pending, state_of

AGREED = pending(8, STATS)
UPDATED = Finished(8, 1.5, STATS.norm, 0.25)


def cut(step: int, **changes: Any) -> Cut:
    return Cut(1, 2, step, state_of(), **changes)


def left(live: LiveState, computing: int | None) -> list[Any]:
    """What the worker of rank 2 does in order as it leaves in mid-step `computing`."""
    worker, said = object.__new__(Worker), list[Any]()
    optimizer = OptimizerConfig(learning_rate=0.25, schedule="Constant")

    def part(name: str) -> Any:
        return SimpleNamespace(close=lambda: said.append(name), settle=lambda: said.append(name))

    values = {
        "_live": live, "_computing": None if computing is None else (plan(computing), 77), "_assignment": Assignment(1, 2),
        "_env": SimpleNamespace(job=SimpleNamespace(optimizer=optimizer, total_steps=10)), "_saver": part("saver"),
        "_prefetcher": part("prefetcher"), "_feed": part("feed"), "_once": part("once"),
        "_outbox": SimpleNamespace(put=lambda *args: said.append(args), flush=lambda _: said.append("flush")),
    }  # fmt: skip
    for name, value in values.items():
        setattr(worker, name, value)
    worker.close()
    return said


@pytest.mark.parametrize(
    "live",
    [LiveState(cut(8, pending=AGREED)), LiveState(cut(9, agreed=STATS), unreported=UPDATED)],
    ids=["before the update", "behind it"],
)
def test_a_step_that_breaks_off_behind_the_vote_is_reported_with_what_all_have_agreed_on(live: LiveState) -> None:
    """No rank computes it again. The snapshot of a save is settled before the next world changes the state."""
    *parts, (path, step, report), flush = left(live, 8)
    assert (parts, flush) == (["saver", "prefetcher", "feed", "once"], "flush")
    assert (path, step, report.totals) == ("/v1/reports", 8, Totals(STATS.loss_sum, STATS.delivered))
    expected = StepReport(
        1, 8, 2, 1.5, 77, STATS.norm, 0.25, 0.0, 0.0, 0.0, 0.0, ended=report.ended, totals=report.totals
    )
    assert report == expected


@pytest.mark.parametrize(
    ("live", "computing"),
    [
        (LiveState(), 8),
        (LiveState(cut(8)), 8),
        (LiveState(cut(8, pending=pending(8))), 8),
        (LiveState(cut(8, pending=AGREED)), None),  # it is reported
        (LiveState(cut(8, pending=AGREED)), 9),
        (LiveState(cut(9, agreed=STATS), unreported=UPDATED), 9),  # which the change to this world has updated
        (LiveState(cut(9), unreported=UPDATED), 8),
    ],
)
def test_a_step_without_a_vote_is_not_reported_nor_one_step_as_another(live: LiveState, computing: int | None) -> None:
    assert left(live, computing)[4:] == ["flush"]
