"""What a worker does around each of its steps, and leaves behind its world."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from coxswain.layout import Device, uniform_layout
from coxswain.wire import StepReport, World
from coxswain_train.engine.engine import StepResult
from tests.step_samples import plan
from tests.unit import report_samples
from tests.unit.worker_fakes import BrokenOff, FakeEngine, Running

EVALUATED = 1000.0


class Engine(FakeEngine):
    """Each step says that its evaluation took long. `collects`: whether Python collected at any time meanwhile."""

    def __init__(self) -> None:
        self.collects = list[bool]()

    def step(self, work: Any, began: float) -> StepResult:
        self.collects.append(gc.isenabled())
        return StepResult(0.0, 0.0, 0.0, 0.0, 0.0, (), evaluation_seconds=EVALUATED)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[StepReport]]:
    """What a worker reports that has the plans of two steps."""

    def run(engine: Engine, **options: Any) -> list[StepReport]:
        layout = uniform_layout([Device(0, 0)], 4)
        world, plans = World(1, 3, layout, layout.ranks(), ("t",), ()), (plan(3), plan(4))
        running = Running(monkeypatch, report_samples.job(), world, lambda *_: engine, plans=plans, **options)
        return [message[2] for message in running.run() if message[0] == "/v1/reports"]

    return run


def test_the_seconds_of_a_step_are_without_those_of_its_evaluation(reports: Callable[..., list[StepReport]]) -> None:
    """They are compared with the plan's, which has no evaluation."""
    found = reports(Engine())
    assert [(r.step, r.evaluation_seconds) for r in found] == [(3, EVALUATED), (4, EVALUATED)]
    assert all(r.seconds < EVALUATED / 2 - EVALUATED for r in found)


@pytest.mark.parametrize("part", ["saver", "outbox"])
def test_a_worker_that_cannot_save_or_report_any_more_begins_no_further_step(
    reports: Callable[..., list[StepReport]], part: str
) -> None:
    """It would compute what nothing keeps, as long as it has plans, and then wait for ever."""
    assert reports(Engine(), failed=part) == []


def test_garbage_is_collected_between_the_steps_of_a_world_and_behind_it_at_any_time_again(
    reports: Callable[..., list[StepReport]],
) -> None:
    """Between worlds a worker may wait for hours, and takes no step that would collect."""
    engine = Engine()
    reports(engine)
    assert engine.collects == [False, False]
    assert gc.isenabled()


@pytest.mark.parametrize(("checkpoint", "begins"), [("", True), ("manifests/step-0000000003.json", False)])
def test_a_model_has_to_embed_the_longest_sequence_that_a_job_allows_only_where_its_run_begins(
    monkeypatch: pytest.MonkeyPatch, checkpoint: str, begins: bool
) -> None:
    """A run that goes on could change neither number, and may never meet such a sequence."""
    job, layout, asked = report_samples.job(), uniform_layout([Device(0, 0)], 4), list[int]()

    def engine(*arguments: Any) -> Any:
        asked.append(arguments[-1])
        raise BrokenOff

    world = World(1, 3, layout, layout.ranks(), ("t",), (), checkpoint=checkpoint)
    Running(monkeypatch, job, world, engine).run()
    assert asked == [job.batch.max_sequence_tokens if begins else 0]
