"""The whole page and the command."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from coxswain.errors import Refused
from coxswain_cli.readers.folder import FolderReader
from coxswain_cli.report import report_command, write_report
from coxswain_cli.reporting.curves import charts
from coxswain_cli.reporting.json_report import facts
from coxswain_cli.reporting.model import RecordedRun, RecordedStep
from coxswain_cli.reporting.page import page
from coxswain_cli.reporting.read import read_run
from coxswain_cli.reporting.summary import figures
from tests.unit import report_samples as samples
from tests.unit.test_report_read import slow_timing

app = typer.Typer()
app.command()(report_command)
VOID = {"meta"}


class Checker(HTMLParser):
    """Collects what a page loads and whether its tags match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts = 0
        self.links: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open += [] if tag in VOID else [tag]
        self.scripts += tag == "script"
        self.links += [value or "" for key, value in attrs if key in {"src", "href", "srcset", "action"}]
        self.handlers += [key for key, _ in attrs if key.startswith("on")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_reader_of_the_numbers_that_has_left_is_no_fault_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`main` ends without a word then, as it does for every command."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as out, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        with pytest.raises(BrokenPipeError):
            report_command(str(samples.write_run(tmp_path, steps=3)), as_json=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


@pytest.mark.parametrize("place", ["", "none/report.html"])
def test_a_place_where_no_page_can_be_written_is_named_with_the_way_out(tmp_path: Path, place: str) -> None:
    done = CliRunner().invoke(
        app, [str(samples.write_run(tmp_path / "run", steps=3)), "--output", str(tmp_path / place)]
    )
    why = "No such file or directory" if place else "Is a directory"
    words = f"cox report: {tmp_path / place} cannot be written ({why}); give --output the path of a file that can be"
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (2, words)


def check(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    return checker


def test_the_page_loads_nothing_and_its_tags_match(tmp_path: Path) -> None:
    text = page(read_run(samples.write_run(tmp_path)))
    checker = check(text)
    assert checker.links == []
    assert checker.scripts == 1
    assert not re.search(r"(?<!xmlns=\")https?://", text)


def test_the_page_shows_the_end_of_the_run_and_its_digests(tmp_path: Path) -> None:
    text = page(read_run(samples.write_run(tmp_path, steps=30)))
    for words in (
        "Completed",
        "StopReached at step 30",
        "30 of 60",
        f"{29:064x}",
        "1 counted",
        "WorkerRestarted",
        "by weight 70.0 %",
    ):
        assert words in text


def test_the_page_and_the_object_for_scripts_name_a_slow_trainer(tmp_path: Path) -> None:
    samples.write_lines(tmp_path / "steps.jsonl", [samples.step_line(k) for k in range(20)])
    samples.write_lines(tmp_path / "timings.jsonl", [slow_timing(k, ranks=4) for k in range(20)])
    run = read_run(tmp_path)
    said = "trainer-1 computes 3.0 x as long as the median for the same work"
    assert f"means over the last 20 steps. {said}." in page(run)
    assert "rank 3: computes 3 s, 3.00 x the median for its work; waits 250 ms for data, 750 ms for others" in page(run)
    found = facts(run)
    assert (found["slow"], [t["trainer"] for t in found["trainers"]]) == (said, [1, 0])


def test_nothing_in_a_run_can_inject_markup(tmp_path: Path) -> None:
    evil = '"><img src=x onerror=alert(1)><script>alert(1)</script>'
    samples.write_run(tmp_path, steps=3)
    samples.write_lines(
        tmp_path / "steps.jsonl",
        [samples.step_line(k, tokens_by_source={evil: 5}, stream_digest=evil) for k in range(3)],
    )
    samples.write_lines(tmp_path / "events.jsonl", [{"time": 1, "reason": evil, "message": evil, "object": evil}])
    condition = {"type": "Succeeded", "status": evil, "reason": evil, "message": evil}
    status = {"conditions": [condition], "lastCheckpoint": {"step": 3, "uri": evil, "time": evil}}
    samples.write_object(tmp_path, "TrainingJob", "stdlib", {"status": status})
    run = read_run(tmp_path)
    assert run.status == status
    checker = check(page(run))
    assert (checker.scripts, checker.links, checker.handlers) == (1, [], [])


def test_a_run_that_never_took_a_step_still_has_a_report(tmp_path: Path) -> None:
    samples.write_lines(tmp_path / "events.jsonl", [{"time": 1, "reason": "Failed", "message": "no such source"}])
    text = page(read_run(tmp_path))
    check(text)
    assert "no such source" in text


def test_a_run_without_timings_or_objects_has_curves(tmp_path: Path) -> None:
    samples.write_lines(tmp_path / "steps.jsonl", [samples.step_line(k) for k in range(20)])
    text = page(read_run(tmp_path))
    check(text)
    assert text.count("<polyline") >= 5
    assert "weights are not known" in text


def test_the_report_of_ten_thousand_steps_stays_small(tmp_path: Path) -> None:
    samples.write_lines(tmp_path / "steps.jsonl", [samples.step_line(k) for k in range(10_000)])
    assert len(page(read_run(tmp_path))) < 400_000


def test_the_command_writes_the_page_and_prints_its_path(tmp_path: Path) -> None:
    samples.write_run(tmp_path / "run", steps=4)
    result = CliRunner().invoke(app, [str(tmp_path / "run"), "--output", str(tmp_path / "r.html"), "--steps", "1,3"])
    assert result.exit_code == 0
    assert result.output.strip() == str(tmp_path / "r.html")
    assert re.findall(r"<b>Step (\d+)</b>", (tmp_path / "r.html").read_text()) == ["1", "3"]


def test_scripts_get_the_pages_numbers_as_one_object_and_no_page(tmp_path: Path) -> None:
    samples.write_run(tmp_path, steps=4)
    result = CliRunner().invoke(app, [str(tmp_path), "--json", "--steps", "2"])
    found = json.loads(result.output)
    assert (found["job"], found["state"], found["steps"], found["steps_wanted"]) == ("stdlib", "Completed", 4, 60)
    assert found["loss"]["best"] == min(samples.step_line(k)["loss"] for k in range(4))
    assert found["stream_digest"] == f"{3:064x}"
    assert [s["name"] for s in found["sources"]] == ["code", "docs"]
    assert sum(s["share"] for s in found["sources"]) == pytest.approx(1)
    assert found["sources"][0]["wanted"] == pytest.approx(0.7)
    assert [(p["step"], p["why"], len(p["ranks"])) for p in found["pictured"]] == [(2, "asked for", 4)]
    assert not (tmp_path / "report.html").exists()


def test_evaluations_and_utilisation_are_figures_curves_and_facts(tmp_path: Path) -> None:
    extra = {3: {"evaluation_loss": 4.25}, 7: {"evaluation_loss": 4.125}}
    steps = [samples.step_line(k, mfu=0.4, **extra.get(k, {})) for k in range(9)]
    samples.write_lines(tmp_path / "steps.jsonl", steps)
    run = read_run(tmp_path)
    found, text = facts(run), page(run)
    assert found["evaluations"] == [{"step": 3, "loss": 4.25}, {"step": 7, "loss": 4.125}]
    assert found["model_flops_utilization"] == 0.4
    assert "<dt>last loss on held-out documents</dt><dd>4.12</dd>" in text
    assert "<dt>model FLOPs utilisation</dt><dd>40.0 %</dd>" in text
    (loss,) = (c for c in charts(run) if c.title == "Loss")
    assert loss.series[-1].values == (None, None, None, 4.25, 4.25, 4.25, 4.25, 4.125, 4.125)


def test_predicted_steps_are_a_curve_beside_measured_ones_and_their_error_is_a_figure_and_a_fact(
    tmp_path: Path,
) -> None:
    steps = [samples.step_line(k, seconds=2.0, planned_seconds=2.0 + 0.1 * k) for k in range(5)]
    samples.write_lines(tmp_path / "steps.jsonl", steps)
    run = read_run(tmp_path)
    assert facts(run)["cost_model_error"] == {"p50": pytest.approx(0.1), "p95": pytest.approx(0.19), "count": 5}
    assert "<dt>prediction of steps off by</dt><dd>10.0 % (p95 19 %)</dd>" in page(run)
    (time,) = (c for c in charts(run) if c.title == "Step time")
    assert [s.name for s in time.series] == ["measured", "predicted"] and time.series[1].values[4] == 2.4


def test_a_run_of_an_earlier_release_shows_no_prediction(tmp_path: Path) -> None:
    samples.write_lines(tmp_path / "steps.jsonl", [samples.step_line(k) for k in range(5)])
    run = read_run(tmp_path)
    assert facts(run)["cost_model_error"]["count"] == 0
    assert "prediction" not in page(run) and "Step time" not in [c.title for c in charts(run)]


def test_a_run_without_evaluations_or_a_known_peak_shows_neither(tmp_path: Path) -> None:
    run = read_run(samples.write_run(tmp_path, steps=4))
    assert [c.title for c in charts(run)] == [
        "Loss", "Gradient norm", "Learning rate", "Throughput", "Idle share", "Plan quality",
    ]  # fmt: skip
    assert "held out" not in page(run)


def test_a_run_without_a_step_is_an_object_too(tmp_path: Path) -> None:
    samples.write_lines(tmp_path / "events.jsonl", [{"time": 1, "reason": "Failed", "message": "no such source"}])
    found = json.loads(CliRunner().invoke(app, [str(tmp_path), "--json"]).output)
    assert (found["steps"], found["loss"], found["tokens_per_second"], found["sources"]) == (0, None, None, [])


def test_a_jobs_name_stands_for_its_work_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples.write_run(tmp_path / "runs" / "demo", steps=1)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["demo"]).exit_code == 0
    assert (tmp_path / "runs" / "demo" / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "neither a work directory nor a job below runs/"),
        (["run", "--steps", "x"], "'x'"),
        (["run", "--steps", "9"], "recorded are 0 to 1"),
    ],
)
def test_a_wrong_argument_is_refused_with_exit_2(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples.write_run(tmp_path / "run", steps=2)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_writing_leaves_no_partial_file(tmp_path: Path) -> None:
    write_report(FolderReader(samples.write_run(tmp_path / "run", steps=1)), tmp_path / "r.html")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.html", "run"]


def test_what_cannot_be_written_leaves_no_partial_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(Refused, match="folder cannot be written"):
        write_report(FolderReader(samples.write_run(tmp_path / "run", steps=1)), tmp_path / "folder")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "run"]


@pytest.mark.parametrize("before", ["old", None], ids=["a link to a file", "a link to nothing yet"])
def test_a_report_to_a_link_is_written_behind_it(tmp_path: Path, before: str | None) -> None:
    link, behind = tmp_path / "link.html", tmp_path / "behind.html"
    link.symlink_to(behind)
    if before is not None:
        behind.write_text(before)
    write_report(FolderReader(samples.write_run(tmp_path / "run", steps=1)), link)
    assert link.is_symlink() and behind.read_text().startswith("<!doctype html>")


def test_a_report_to_a_folder_that_is_not_there_is_refused_by_the_name_that_was_given(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"/absent/r\.html cannot be written \(No such file or directory\)"):
        write_report(FolderReader(samples.write_run(tmp_path / "run", steps=1)), tmp_path / "absent" / "r.html")


def test_a_report_to_a_circle_of_links_is_refused_and_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    run = samples.write_run(tmp_path / "run", steps=1)
    assert CliRunner().invoke(app, [str(run), "--output", str(tmp_path / "loop")]).exit_code == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["loop", "run"] and (tmp_path / "loop").is_symlink()


def test_a_report_to_a_fifo_is_what_its_reader_gets(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)  # the page has room in it: the writer need not wait for its reader
    try:
        write_report(FolderReader(samples.write_run(tmp_path / "run", steps=1)), fifo)
        found = os.read(reader, 1 << 20).decode()
    finally:
        os.close(reader)
    assert found.startswith("<!doctype html>") and found.endswith("</html>\n") and fifo.is_fifo()


def test_a_report_to_standard_output_in_a_file_is_all_that_the_file_has(tmp_path: Path) -> None:
    run = samples.write_run(tmp_path / "run", steps=1)
    (tmp_path / "fd").symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    call = [sys.executable, "-m", "coxswain_cli", "report", str(run), "--output", str(tmp_path / "fd")]
    with (tmp_path / "r.html").open("wb") as out:
        subprocess.run(call, stdout=out, check=True, timeout=60)
    found = (tmp_path / "r.html").read_text()
    assert found.startswith("<!doctype html>") and found.endswith("</html>\n")
    assert (tmp_path / "fd").is_symlink()


def test_a_strategy_is_on_the_page_with_predicted_and_measured_seconds(tmp_path: Path) -> None:
    other = {"layout": "1 x tp1pp2", "predictedStepSeconds": "0.750"}
    chosen = {"layout": "2 x tp1pp1", "predictedStepSeconds": "0.500", "alternatives": [other]}
    run = RecordedRun("demo", steps=(RecordedStep(0, seconds=0.5), RecordedStep(1, seconds=0.7)))
    text = page(replace(run, status={"strategy": chosen}))
    assert "2 x tp1pp1: 0.500 s a step predicted, 600 ms measured" in text
    assert "1 x tp1pp2 0.750 s" in text
    assert "mode Auto" not in page(run)


def test_the_idle_share_of_a_run_weighs_each_step_by_its_seconds() -> None:
    run = RecordedRun("demo", (RecordedStep(0, seconds=1.0), RecordedStep(1, seconds=3.0, idle_fraction=0.4)))
    assert dict(figures(run))["idle share"] == "30.0 %"
    assert facts(run)["idle_fraction"] == pytest.approx(0.3)
