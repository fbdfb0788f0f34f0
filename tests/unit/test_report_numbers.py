"""The numbers of a report, computed by hand: of the page, of its curves and of the object for scripts."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from coxswain.trainer_figures import TrainerFigures
from coxswain_cli.reporting.charts import Chart, draw
from coxswain_cli.reporting.curves import MOST_GAPS, SMOOTH_FROM, charts
from coxswain_cli.reporting.json_report import facts
from coxswain_cli.reporting.markup import Markup
from coxswain_cli.reporting.model import RecordedEvent, RecordedRun, RecordedStep
from coxswain_cli.reporting.summary import end, events, figures, heading
from coxswain_cli.reporting.trainers import section
from tests.unit.report_samples import BEGAN, job

STEPS = (
    RecordedStep(
        0, 1, tokens=1000, sequences=7, loss=5.0, seconds=4.0, idle_fraction=0.5, makespan_over_bound=1.5, mfu=0.2,
        data_wait_seconds=1.0, time=BEGAN + 60, tokens_by_source={"code": 750, "docs": 250}, gradient_norm=2.0,
        learning_rate=0.1,
    ),
    RecordedStep(
        1, 9, tokens=2000, sequences=8, loss=3.0, seconds=1.0, idle_fraction=0.1, mfu=0.3, time=BEGAN + 30,
        tokens_by_source={"code": 2000}, gradient_norm=3.0, learning_rate=0.2, planned_seconds=1.25,
    ),
    RecordedStep(
        2, 10, tokens=3000, sequences=9, loss=4.0, seconds=2.0, idle_fraction=0.2, mfu=0.6, time=BEGAN + 90,
        tokens_by_source={"docs": 3000}, gradient_norm=4.0, learning_rate=0.3,
    ),
)  # fmt: skip
"""The second one ends before the first: the clock was set back."""
RUN = RecordedRun("demo", STEPS, job=job())


def chart(title: str, run: RecordedRun = RUN) -> Chart:
    return next(c for c in charts(run) if c.title == title)


def row(markup: Markup, name: str) -> str | None:
    """The value of a row of the table at the end."""
    found = re.search(rf"<th>{name}</th><td>([^<]*)</td>", markup)
    return found and found[1]


def test_the_key_figures_are_of_all_steps_of_the_run() -> None:
    assert dict(figures(RUN)) == {
        "steps": "3 of 60", "last loss": "4", "tokens": "6k", "tokens per second": "857", "median step": "2 s",
        "prediction of steps off by": "25.0 % (p95 25 %)", "model FLOPs utilisation": "30.0 %", "idle share": "35.7 %",
    }  # fmt: skip


def test_the_object_for_scripts_has_the_same_numbers() -> None:
    wanted = {
        "steps": 3, "steps_wanted": 60, "loss": {"first": 5.0, "last": 4.0, "best": 3.0}, "tokens": 6000,
        "tokens_per_second": pytest.approx(6000 / 7), "median_step_seconds": 2.0, "model_flops_utilization": 0.3,
        "idle_fraction": pytest.approx(2.5 / 7), "world_generations": [1, 9, 10], "steps_computed_again": 0,
    }  # fmt: skip
    found = facts(RUN)
    assert {name: found[name] for name in wanted} == wanted
    assert [(s["name"], s["tokens"], s["share"]) for s in found["sources"]] == [
        ("code", 2750, pytest.approx(2750 / 6000)), ("docs", 3250, pytest.approx(3250 / 6000)),
    ]  # fmt: skip


def test_the_object_for_scripts_has_each_event_with_its_time() -> None:
    run = RecordedRun("demo", events=(RecordedEvent(BEGAN, "NodeLost", "node-b", "Pod/p"),))
    assert facts(run)["events"] == [{"time": BEGAN, "reason": "NodeLost", "message": "node-b"}]


def test_each_curve_has_its_unit_and_a_value_a_step() -> None:
    found = {c.title: [c.unit, *(s.values for s in c.series)] for c in charts(RUN)}
    assert found == {
        "Loss": ["nats per token", (5.0, 3.0, 4.0)],
        "Gradient norm": ["before clipping", (2.0, 3.0, 4.0)],
        "Learning rate": ["", (0.1, 0.2, 0.3)],
        "Throughput": ["tokens per second", (250.0, 2000.0, 1500.0)],
        "Model FLOPs utilisation": ["% of the peak", pytest.approx((20.0, 30.0, 60.0))],
        "Idle share": ["% of device time", pytest.approx((50.0, 10.0, 20.0)), (25.0, 0.0, 0.0)],
        "Step time": ["seconds", (4.0, 1.0, 2.0), (None, 1.25, None)],
        "Plan quality": ["planned makespan / lower bound", (1.5, None, None)],
    }
    assert chart("Loss").note == "5 at first, 4 at last, 3 at best"
    assert chart("Throughput").note == "median step 2 s"


def test_a_change_of_the_world_is_marked_at_the_first_step_of_the_new_one_in_every_curve() -> None:
    marks = {c.marks for c in charts(RUN)}
    assert marks == {((1, "world generation 9"), (2, "world generation 10"))}
    assert '<line x1="500" x2="500"' in draw(chart("Loss"))


@pytest.mark.parametrize(("count", "series"), [(SMOOTH_FROM - 1, 1), (SMOOTH_FROM, 2)])
def test_an_average_is_drawn_once_there_are_steps_enough_to_smooth(count: int, series: int) -> None:
    run = RecordedRun("demo", tuple(RecordedStep(k, loss=float(k)) for k in range(count)))
    assert len(chart("Loss", run).series) == series


def test_an_average_ends_where_the_curve_does() -> None:
    """A mean over fewer and fewer neighbours: else the end of a falling loss would look higher than it is."""
    run = RecordedRun("demo", tuple(RecordedStep(k, loss=100.0 - k) for k in range(40)))
    raw, average = chart("Loss", run).series
    assert average.values == pytest.approx(raw.values)


@pytest.fixture
def nine_hours_ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("nine_hours_ahead")
def test_the_time_of_a_run_is_from_its_first_to_its_last_moment_in_whatever_order_clocks_have_them() -> None:
    moments = (RecordedEvent(0.0, "R", "no time is known"), RecordedEvent(BEGAN + 10, "R", ""))
    said = heading(RecordedRun("demo", STEPS, moments))
    assert "2027-01-15 08:00:10 to 2027-01-15 08:01:30 UTC, 80 s in all" in said


def test_events_are_timed_from_the_first_whose_time_is_known() -> None:
    """One without a time would put all others decades behind it."""
    found = [RecordedEvent(at, f"R{at:g}", "") for at in (BEGAN, 0.0, BEGAN + 75)]
    times = re.findall(r"<td[^>]*>([^<]*)</td>", events(RecordedRun("demo", events=tuple(found))))
    assert times == ["0 s", "time unknown", "+75 s"]


def test_events_that_say_what_went_wrong_stand_out() -> None:
    found = tuple(RecordedEvent(BEGAN, reason, "") for reason in ("CheckpointSaved", "NodeLost"))
    assert re.findall(r"<b[^>]*>[^<]*</b>", events(RecordedRun("demo", events=found))) == [
        "<b>CheckpointSaved</b>", '<b class="bad">▲ NodeLost</b>',
    ]  # fmt: skip


def test_the_table_at_the_end_has_generations_restarts_and_redone_steps_in_their_order() -> None:
    found = end(RecordedRun("demo", STEPS, status={"restarts": {"counted": 3, "ignored": 4}}, redone=2, unreadable=5))
    assert row(found, "world generations") == "1, 9, 10"
    assert row(found, "restarts") == "3 counted, 4 not counted"
    assert (row(found, "steps computed again"), row(found, "unreadable lines")) == ("2", "5")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"lastCheckpoint": {"step": 8, "uri": "s3://b/k"}}, "step 8, s3://b/k"),
        ({}, "step 6 is saved"),
    ],
)
def test_the_last_checkpoint_is_that_of_the_status_or_else_of_the_last_event(status: dict[str, Any], said: str) -> None:
    saved = tuple(RecordedEvent(BEGAN + step, "CheckpointSaved", f"step {step} is saved") for step in (3, 6))
    later = RecordedEvent(BEGAN + 9, "Completed", "done")
    assert row(end(RecordedRun("demo", status=status, events=(*saved, later))), "last checkpoint") == said


def test_steps_without_a_line_are_counted_and_marked_where_they_are_missing() -> None:
    """Tokens and times of the run lack them, and a curve goes straight over them."""
    run = RecordedRun("demo", tuple(RecordedStep(k, tokens=10, seconds=1.0) for k in (2, 3, 7, 9)))
    assert (row(end(run), "steps without a line"), facts(run)["steps_without_a_line"]) == ("6", 6)
    assert (dict(figures(run))["steps"], facts(run)["steps"]) == ("10", 10)
    assert chart("Throughput", run).marks == ((7, "no lines of steps 4 to 6"), (9, "no line of step 8"))
    assert (row(end(RUN), "steps without a line"), facts(RUN)["steps_without_a_line"]) == (None, 0)
    assert facts(RecordedRun("demo"))["steps_without_a_line"] == 0


def test_of_very_many_gaps_the_longest_are_marked() -> None:
    """A damaged file may lack every other step: a page of their marks would show nothing else."""
    steps = [RecordedStep(2 * k, seconds=1.0) for k in range(3 * MOST_GAPS)] + [RecordedStep(10_000, seconds=1.0)]
    marks = chart("Throughput", RecordedRun("demo", tuple(steps))).marks
    assert len(marks) == MOST_GAPS
    assert marks[-1] == (10_000, "no lines of steps 599 to 9999")


def test_of_a_thousand_trainers_the_slowest_have_rows_and_the_others_are_counted() -> None:
    found = tuple(TrainerFigures(n, n, 20, 1.0, 0.5, 0.25, 3.0 - n / 500) for n in range(1000))
    made = section(found)
    assert made.count("<tr>") == 64
    assert "<th>trainer-63</th>" in made and "<th>trainer-64</th>" not in made
    assert "936 more, which are faster" in made
    assert "more, which are faster" not in section(found[:64])


@pytest.mark.parametrize(
    ("steps", "slowdown", "said"),
    [
        (4, 3.0, "Fewer than 5 steps name no slow one."),
        (5, 3.0, "trainer-0 computes 3.0 x as long as the median for the same work."),
        (5, 1.4, "No trainer is slow."),
    ],
)
def test_that_no_trainer_is_slow_is_said_of_steps_enough(steps: int, slowdown: float, said: str) -> None:
    figures_of_one = (TrainerFigures(0, 0, steps, 1.0, 0.5, 0.25, slowdown),)
    assert f"means over the last {steps} steps. {said}</p>" in section(figures_of_one)
