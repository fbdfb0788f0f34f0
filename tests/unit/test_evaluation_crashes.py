"""Evaluations beside changes of world, stops and losses: which loss stands for each step that one follows.

The evaluations of the simulation depend on every weight behind their step and on every held-out token.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coxswain import wire
from coxswain.config import EvaluationConfig
from coxswain_coordinator.api.report import job_report
from coxswain_link.store import open_store
from tests.unit.coordinator_fakes import stored_steps
from tests.unit.crash_change import Order
from tests.unit.crash_living import EVALUATION_SECONDS
from tests.unit.crash_worker import STEP_SECONDS
from tests.unit.test_living_crashes import EVERY, STEPS, End, pipeline, play

pytestmark = pytest.mark.timeout(600)

EVALUATION = EvaluationConfig(every_steps=2, tokens=300)
EVALUATED = range(1, STEPS, 2)  # steps that an evaluation follows: one is of the last, two end where a save is due
MOMENTS = [1.0 + n * (STEP_SECONDS + EVALUATION_SECONDS) / 2 for n in range(13)]  # virtual seconds: from step 1 to 8
Losses = dict[int, list[float | None]]  # by evaluated step: one of each line of it


def run(folder: Path, orders: Sequence[Order], strikes: dict[int, Sequence[str]] | None = None, **drawn: Any) -> End:
    return play(folder, orders, strikes or {}, evaluation=EVALUATION, **drawn)


def losses(lines: Sequence[wire.StepLine]) -> Losses:
    found: Losses = defaultdict(list)
    for line in lines:
        if line.evaluation_tokens:
            found[line.step].append(line.evaluation_loss)
    return dict(found)


def written(end: End) -> list[wire.StepLine]:
    lines = (end.simulation.folder / "steps.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=wire.StepLine) for line in lines]


def recorded(end: End) -> list[wire.StepLine]:
    """What the checkpoint location has: it outlives the run directory."""
    return list(stored_steps(open_store(end.simulation.job.checkpoint.uri)))


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> dict[int, float]:
    """The loss of each evaluation where nothing else happens."""
    end = run(tmp_path_factory.mktemp("calm"), [])
    found = losses(written(end))
    assert sorted(found) == list(EVALUATED)
    assert len({tuple(each) for each in found.values()}) == len(
        EVALUATED
    )  # each step's weights have a loss of their own
    return {step: loss for step, (loss,) in found.items() if loss is not None}


PLANNED: dict[str, Callable[[Any], None]] = {
    "a smaller size": lambda job: job.state.resize(2),
    "another layout": lambda job: job.state.request_layout(pipeline(), "a test asks"),
}


@pytest.mark.parametrize("change", PLANNED)
def test_a_planned_change_at_any_step_leaves_each_evaluation_once_with_the_weights_of_its_step(tmp_path, calm, change):
    """Also where a change, a save and an evaluation are due at one boundary."""
    once, begun = {step: [loss] for step, loss in calm.items()}, set[int]()
    for at in MOMENTS:
        end = run(tmp_path / str(at), [(at, PLANNED[change])])
        assert losses(written(end)) == losses(recorded(end)) == once, at
        assert_report(end, STEPS - 1, calm)
        begun.add(min(line.step for line in written(end) if line.worldGeneration > 1))
    assert EVERY in begun


def test_a_stop_at_any_step_leaves_each_evaluation_of_the_steps_before_it_once(tmp_path, calm):
    ends = set[int]()
    for at in MOMENTS:
        end = run(tmp_path / str(at), [], stop_at=at)
        ends.add(len(end.steps))
        before = {step: [loss] for step, loss in calm.items() if step < len(end.steps)}
        assert (end.phase, losses(written(end)), losses(recorded(end))) == ("Suspended", before, before), at
        assert_report(end, max(before, default=-1), calm)
    assert {EVERY, EVERY + 1} <= ends


def assert_report(end: End, step: int, calm: dict[int, float]) -> None:
    """The report names this evaluation as the latest one, and the metric has its loss."""
    report = job_report(end.simulation.state)
    assert (report.evaluation_step, report.evaluation_loss) == (step, calm.get(step))
    found = re.findall(
        rb"^coxswain_evaluation_loss\{.*\} (.*)$", end.simulation.state.metrics.exposition(), re.MULTILINE
    )
    assert [float(value) for value in found] == [calm[step]] * (step >= 0)


def during(end: End, step: int) -> range:
    """Points from the vote on a step to the last report of it."""
    points = end.simulation.fate.points
    first = next(n for n, what in enumerate(points) if what.endswith(f"agree {step}"))
    reports = [n for n, what in enumerate(points) if n > first and what.endswith("/v1/reports")]
    return range(first, reports[2] + 1)


@pytest.mark.parametrize("step", [EVERY - 1, STEPS - 1], ids=["a save is due behind it", "the last step"])
def test_a_loss_in_an_evaluation_costs_that_one_at_most_and_no_step(tmp_path, calm, step):
    quiet, kept = run(tmp_path / "quiet", []), set[bool]()
    for n in during(quiet, step):
        end = run(tmp_path / str(n), [], {n: ("worker-1",)})
        found = losses(written(end))
        kept.add(found[step] == [calm[step]])
        assert found[step] in ([calm[step]], [None]), n
        assert found == {each: [loss] for each, loss in calm.items()} | {step: found[step]}, n
        assert (end.phase, end.steps) == (quiet.phase, quiet.steps), n
        assert_report(end, max(each for each in EVALUATED if found[each] != [None]), calm)
    assert kept == {True, False}
