"""Progress is read from what a run leaves, torn lines included, and shown as a panel or as lines."""

import dataclasses
import io
import json

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from coxswain.names import ANNOTATION_RETRY
from coxswain.wire import JobReport, StepLine
from coxswain_cli.display import Lines, Panels, display_for, panel
from coxswain_cli.jsonlines import JsonOutput
from coxswain_cli.progress import Watcher, amount, duration

JOB = {
    "metadata": {"name": "demo"},
    "status": {"conditions": [{"type": "Succeeded", "reason": "Running", "status": "Unknown"}]},
}
REPORT = JobReport(
    phase="Running", generation=1, step=0, steps=10, tokens=0, loss=None, tokens_per_second=0, idle_fraction=0, eta_seconds=0,
    layout_hash="", layout_summary="2 x tp1pp1", checkpoint_step=-1, checkpoint_uri="", checkpoint_time=0,
    waiting_for="trainer-1 to register",
)  # fmt: skip


def step(number, loss=2.5, time=0.0):
    return StepLine(
        step=number, worldGeneration=1, tokens=4000, sequences=3, loss=loss, stream_digest="", delivered_digest="", seconds=2.0,
        idle_fraction=0.25, makespan_over_bound=1.0, gradient_norm=1.0, learning_rate=0.1, tokens_by_source={},
        data_wait_seconds=0.0, time=time,
    )  # fmt: skip


@pytest.fixture
def watched(tmp_path):
    """A watcher, and how to add to its run."""
    watcher = Watcher(tmp_path)

    def add(*steps, events=(), torn=b"", known_until=0.0):
        with (tmp_path / "steps.jsonl").open("ab") as file:
            file.write(b"".join(msgspec.json.encode(s) + b"\n" for s in steps) + torn)
        with (tmp_path / "events.jsonl").open("ab") as file:
            file.write(b"".join(msgspec.json.encode(e) + b"\n" for e in events))
        return watcher.look(JOB, REPORT, known_until)

    return add


def printed(display_class, *views, width=120):
    out = io.StringIO()
    display = display_class(Console(file=out, width=width, force_terminal=display_class is Panels))
    with display:
        for view in views:
            display.show(view)
    return out.getvalue()


class Paused(io.StringIO):
    """Its reader takes nothing."""

    is_behind, flushes = True, 0

    def flush(self):
        self.flushes += 1


@pytest.mark.parametrize(
    ("display", "says"),
    [
        (lambda out: Lines(Console(file=out)), True),
        (JsonOutput, True),
        (lambda out: Panels(Console(file=out, force_terminal=True)), False),
    ],
    ids=["lines", "json", "panels"],
)
def test_every_look_gives_a_paused_reader_what_waits_and_no_panel_is_put_behind_another(watched, display, says):
    out, view = Paused(), watched(known_until=1e12)
    with display(out) as shown:
        begun = out.getvalue()
        shown.show(view)
        text, flushes = out.getvalue(), out.flushes
        assert (text != begun) is says
        shown.show(view)
        assert (out.getvalue(), out.flushes > flushes) == (text, True)


def test_speed_and_time_left_come_from_the_latest_steps(watched):
    view = watched(step(0), step(1))
    assert (view.step, view.steps, view.tokens_per_second, view.eta_seconds) == (2, 10, 2000.0, 16.0)


def test_speed_and_time_left_follow_the_latest_eight_steps_and_not_the_whole_run(watched):
    slow = [replace(step(n), seconds=50.0) for n in range(2)]
    view = watched(*slow, *(step(n) for n in range(2, 9)))
    assert (view.tokens_per_second, view.eta_seconds) == (8 * 4000 / 64, 8.0)
    view = watched(step(9))
    assert (view.tokens_per_second, view.eta_seconds) == (2000.0, 0.0)


def test_without_a_step_or_a_known_end_no_time_is_left(tmp_path, watched):
    assert watched().eta_seconds is None
    (tmp_path / "other").mkdir()
    watcher = Watcher(tmp_path / "other")
    (tmp_path / "other/steps.jsonl").write_bytes(msgspec.json.encode(step(3)) + b"\n")
    view = watcher.look(JOB, replace(REPORT, steps=0))
    assert (view.step, view.steps, view.eta_seconds) == (4, 0, None)
    assert "step 4/?" in printed(Lines, view)


def test_a_step_that_took_no_measured_time_has_no_rate_of_its_own(watched):
    assert "  0 tokens/s  " in printed(Lines, watched(replace(step(0), seconds=0.0)))


def test_an_incomplete_line_is_read_once_it_is_complete(watched):
    whole = msgspec.json.encode(step(1)) + b"\n"
    assert [s.step for s in watched(step(0), torn=whole[:20]).new_steps] == [0]
    assert [s.step for s in watched(torn=whole[20:]).new_steps] == [1]


def test_what_an_earlier_run_left_is_not_progress(tmp_path):
    (tmp_path / "steps.jsonl").write_bytes(msgspec.json.encode(step(0)) + b"\n")
    assert Watcher(tmp_path).look(JOB, None).new_steps == ()


def test_a_line_has_norm_rate_utilisation_and_the_loss_on_held_out_documents(watched):
    text = printed(Lines, watched(replace(step(0), mfu=0.412, evaluation_loss=2.75)))
    assert (
        "step 1/10  loss 2.5000  held-out 2.7500  gradient 1  rate 0.1  2.0 k tokens/s  MFU 41.2%  idle 25.0%" in text
    )


def test_the_panel_keeps_the_last_evaluation(watched):
    watched(replace(step(0), evaluation_loss=2.75))
    assert "held-out 2.7500" in printed(Panels, watched(step(1)))


def test_lines_show_steps_events_and_the_reason_of_a_wait(watched):
    waiting = watched(events=[{"reason": "GangStarted", "message": "2/2 trainers", "time": "2026-01-01T00:00:00Z"}])
    text = printed(Lines, waiting, watched(step(0), step(1)))
    assert "Running: waiting for trainer-1 to register" in text
    assert "GangStarted: 2/2 trainers" in text
    assert "step 2/10  loss 2.5000  gradient 1  rate 0.1  2.0 k tokens/s  idle 25.0%  left 16 s" in text


def test_lines_wait_for_the_events_of_their_time(watched):
    first = watched(step(0, time=10.0), step(1, time=12.0), known_until=9.0)
    event = {"reason": "TrainingStarted", "message": "step 0 is done", "time": "1970-01-01T00:00:11Z"}
    lines = printed(Lines, first, watched(events=[event], known_until=11.5)).splitlines()
    order = [word for line in lines for word in ("step 1/", "TrainingStarted", "step 2/") if word in line]
    assert order == ["step 1/", "TrainingStarted", "step 2/"]


def test_lines_do_not_wait_for_the_old_time_when_the_clock_is_set_back(watched):
    out = io.StringIO()
    display = Lines(Console(file=out))
    display.show(watched(step(0, time=5000.0), known_until=4999.0))
    assert "step 1/" not in out.getvalue()
    display.show(watched(known_until=1400.0))
    assert "step 1/" in out.getvalue()


def test_a_line_that_is_held_is_printed_once_its_time_is_known_and_only_then_or_at_the_end(watched):
    out = io.StringIO()
    display = Lines(Console(file=out))
    first = watched(step(0, time=10.0), step(1, time=20.0), step(2, time=30.0), known_until=10.0)
    display.show(first)
    display.show(watched(known_until=10.0))
    assert [out.getvalue().count(f"step {n}/") for n in (1, 2, 3)] == [1, 0, 0]
    end = {"reason": "Completed", "message": "all is done", "time": "1970-01-01T00:00:40Z"}
    display.show(dataclasses.replace(watched(events=[end]), state="Completed"))
    assert [out.getvalue().count(f"step {n}/") for n in (1, 2, 3)] == [1, 1, 1]
    assert [line.endswith("left 14 s") for line in out.getvalue().splitlines() if "step " in line] == [
        False, False, True,
    ]  # fmt: skip
    assert "all is done" not in out.getvalue()


@pytest.mark.parametrize(("done", "part"), [(0, 0.0), (5, 0.5), (10, 1.0)])
def test_the_bar_of_the_panel_is_as_long_as_the_part_that_is_done(watched, done, part):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=84)
    console.print(panel(watched(*(step(n) for n in range(done)))))
    assert out.getvalue().count("━") == 80 * part


def test_lines_leave_the_end_to_the_summary_that_follows(watched):
    running = watched()
    assert "Running" in printed(Lines, running)
    assert printed(Lines, dataclasses.replace(running, state="Completed")) == ""


def test_a_state_is_one_line_of_json_however_often_it_is_looked_at_and_it_is_out_at_once(watched):
    class Pipe(io.StringIO):
        def flush(self):
            self.read_so_far = self.getvalue()

    pipe = Pipe()
    display = JsonOutput(pipe)
    for _ in range(3):
        display.show(watched())
    (line,) = map(json.loads, pipe.read_so_far.splitlines())
    assert (line["type"], line["state"], line["waiting_for"]) == ("state", "Running", "trainer-1 to register")


def test_a_job_that_has_failed_and_is_to_be_retried_restarts(tmp_path):
    failed = {"conditions": [{"type": "Succeeded", "reason": "Failed", "status": "False"}]}
    job = {"metadata": {"name": "demo"}, "status": failed}
    retried = {"metadata": {"name": "demo", "annotations": {ANNOTATION_RETRY: "2"}}, "status": failed}
    watcher = Watcher(tmp_path)
    assert [watcher.look(j, None).state for j in (job, retried)] == ["Failed", "Restarting"]


def test_a_wait_is_not_shown_once_steps_are_newer_than_the_report(watched):
    assert watched(step(0)).waiting_for == ""


def test_the_panel_shows_step_loss_speed_events_and_checkpoint(watched):
    text = printed(
        Panels,
        watched(step(0), events=[{"reason": "TrainingStarted", "message": "step 0", "time": "2026-01-01T00:00:00Z"}]),
    )
    for part in (
        "demo: Running",
        "step 1/10",
        "loss 2.5000",
        "2.0 k tokens/s",
        "idle 25.0%",
        "left 18 s",
        "TrainingStarted",
    ):
        assert part in text


def test_the_panel_of_eighty_columns_keeps_its_numbers_on_one_line_and_names_the_last_checkpoint(tmp_path):
    saved = {**JOB, "status": {**JOB["status"], "lastCheckpoint": {"step": 3}}}
    lines = printed(Panels, Watcher(tmp_path).look(saved, REPORT), width=80).splitlines()
    assert any(all(word in line for word in ("step 0/10", "tokens/s", "left")) for line in lines)
    assert any("checkpoint before step 3" in line for line in lines)


@pytest.mark.parametrize(("status", "report", "shown"), [(3, -1, 3), (3, 8, 8), (8, 3, 8), (-1, -1, -1)])
def test_the_last_checkpoint_is_the_newer_of_those_of_status_and_report(tmp_path, status, report, shown):
    known = {"lastCheckpoint": {"step": status}} if status >= 0 else {}
    job = {**JOB, "status": {**JOB["status"], **known}}
    view = Watcher(tmp_path).look(job, msgspec.structs.replace(REPORT, checkpoint_step=report))
    assert view.checkpoint_step == shown


@pytest.mark.parametrize("width", [24, 40, 60])
def test_a_narrow_panel_breaks_no_number_over_lines(watched, width):
    text = printed(Panels, watched(step(0)), width=width)
    for part in ("step 1/10", "loss 2.5000", "2.0 k tokens/s", "idle 25.0%", "left 18 s"):
        assert part in text
    assert max(Text.from_ansi(line).cell_len for line in text.splitlines()) <= width


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_the_panel_and_a_file_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(display_for(Console(file=Terminal())), Panels)
    assert isinstance(display_for(Console(file=io.StringIO())), Lines)


@pytest.mark.parametrize(("variable", "value", "file"), [("FORCE_COLOR", "1", io.StringIO), ("TERM", "dumb", Terminal)])
def test_an_output_that_is_no_terminal_gets_lines_even_with_forced_colours(monkeypatch, watched, variable, value, file):
    monkeypatch.setenv(variable, value)
    out = file()
    with display_for(Console(file=out)) as display:
        display.show(watched(step(0), known_until=1.0))
    assert isinstance(display, Lines)
    assert "step 1/10" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_a_world_that_begins_at_an_earlier_checkpoint_shows_that_step_and_what_it_waits_for(tmp_path):
    """Its first step takes long. The last line is of a step that is done again."""
    watcher, back = Watcher(tmp_path), replace(REPORT, generation=2, step=2, waiting_for="all 2 ranks to finish step 2")
    (tmp_path / "steps.jsonl").write_bytes(b"".join(msgspec.json.encode(step(n)) + b"\n" for n in range(6)))
    view = watcher.look(JOB, back)
    assert (view.step, view.waiting_for, view.eta_seconds) == (2, back.waiting_for, 16.0)


@pytest.mark.parametrize("seconds, text", [(0.4, "0 s"), (59.4, "59 s"), (187, "3 m 07 s"), (7500, "2 h 05 m")])
def test_durations_are_formatted_with_two_units(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    "number, text",
    [
        (812, "812"),
        (12_345, "12.3 k"),
        (4_560_000, "4.56 M"),
        (2e9, "2.00 G"),
        (999.4, "999"),
        (999.6, "1.0 k"),
        (999_940, "999.9 k"),
        (999_960, "1.00 M"),
        (999_994_000, "999.99 M"),
        (999_996_000, "1.00 G"),
    ],
)
def test_amounts_are_formatted_with_a_unit(number, text):
    assert amount(number) == text


def test_scripts_get_every_event_step_and_change_of_state_as_an_object_a_line(watched):
    out = io.StringIO()
    with JsonOutput(out) as display:
        display.show(watched(events=[{"reason": "GangStarted", "message": "2/2", "time": "2026-01-01T00:00:00Z"}]))
        display.show(watched(step(0), step(1)))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["type"] for line in lines] == ["event", "state", "step", "step", "state"]
    assert lines[0] | {"reason": "GangStarted", "time": "2026-01-01T00:00:00Z"} == lines[0]
    assert lines[1]["waiting_for"] == "trainer-1 to register"
    assert (lines[3]["step"], lines[3]["loss"], lines[3]["tokens"]) == (1, 2.5, 4000)
    assert (lines[4]["step"], lines[4]["steps"], lines[4]["waiting_for"]) == (2, 10, "")
