"""What the history of closed steps measures."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from coxswain.wire import StepLine
from coxswain_coordinator.state.history import History
from coxswain_coordinator.steps import TimingLine
from coxswain_link.metrics import build
from tests.unit.report_samples import step_line

TIMING = TimingLine(0, 1, 1, 4.0, 4.0, (), ())


def test_the_cost_models_error_has_no_series_before_a_step_that_is_predicted() -> None:
    """A 0 would say that each prediction was met."""
    metrics = build("coordinator")
    history = History(None, metrics)
    line = replace(msgspec.convert(step_line(0), StepLine), seconds=4.0, planned_seconds=0.0)
    history.add(line, TIMING, ())
    assert "coxswain_cost_model_error " not in metrics.exposition().decode()
    history.add(replace(line, step=1, planned_seconds=3.0), TIMING, ())
    assert "coxswain_cost_model_error 0.25\n" in metrics.exposition().decode()
