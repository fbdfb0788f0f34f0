"""What `cox` reads of a work directory: of a long run, not all of it at a time."""

from __future__ import annotations

import errno
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from coxswain.api.validate import defaulted
from coxswain.lines import drop_torn_line, end_of_lines, lines_from_end
from coxswain.names import ANNOTATION_STOP_AT
from coxswain.wire import StepLine
from coxswain_cli.__main__ import app
from coxswain_cli.summary import summary
from coxswain_cli.workdir import Tail, all_steps, last_step, taken_request
from coxswain_coordinator.state.jsonl import JsonlWriter
from tests.api_samples import sample
from tests.unit import report_samples as samples
from tests.unit.test_cox_scale import METADATA

LINE = StepLine(0, 1, 10, 2, 1.5, "a" * 64, "b" * 16, 2.0, 0.1, 1.05, 0.5, 1e-3, {"code": 10}, 0.2, 99.0)
JOB = {"metadata": {"name": "demo"}, "status": {}}


@pytest.mark.parametrize("torn", ["", "to"])
@pytest.mark.parametrize("count", [0, 1, 2, 40])
@pytest.mark.parametrize("block", [1, 2, 7, 1000])
def test_lines_come_from_the_end_whole_and_without_a_torn_one(
    tmp_path: Path, count: int, block: int, torn: str
) -> None:
    whole = ["x" * (n % 6) + str(n) for n in range(count)]
    (tmp_path / "file").write_text("".join(f"{line}\n" for line in whole) + torn)
    assert [line.decode() for line in lines_from_end(tmp_path / "file", block)] == whole[::-1]
    assert end_of_lines(tmp_path / "file", block) == (tmp_path / "file").stat().st_size - len(torn)


def test_a_tail_begins_behind_the_last_whole_line_so_that_none_is_lost_when_a_torn_one_is_dropped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"of an earlier run\ntorn by a kill")
    tail = Tail(path)
    drop_torn_line(path)
    with path.open("ab") as file:
        file.write(b"first\nsecond\n")
    assert list(tail.lines()) == [b"first\n", b"second\n"]


@pytest.mark.parametrize("words", [["logs", ""], ["report", ""], ["scale", "", "2"], ["status", ""]])
def test_an_empty_name_of_a_job_does_not_mean_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """As of a shell's variable that is not set."""
    (tmp_path / "cluster").mkdir()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [tmp_path / "cluster"])
    assert "it is empty; give a name" in done.output


@pytest.mark.parametrize("command", ["status", "logs", "report"])
def test_a_name_that_no_file_system_takes_is_refused_like_any_other_and_not_repeated_whole(command: str) -> None:
    done = CliRunner().invoke(app, [command, "x" * 5000])
    assert done.exit_code == 2 and len(done.stderr) < 300
    assert "...' cannot be looked up (File name too long); name a work directory, or a job below runs/" in done.stderr


def test_an_empty_workdir_is_refused_and_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["run", "job.yaml", "--workdir", ""])
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "--workdir" in done.stderr and "it is empty; give a folder" in done.stderr


@pytest.mark.parametrize("before", [0, 240])
def test_a_tail_reads_on_behind_its_last_line_when_the_older_half_of_the_file_goes(tmp_path: Path, before: int) -> None:
    path, writer = tmp_path / "steps.jsonl", JsonlWriter(tmp_path, "steps.jsonl", most=1000)
    for step in range(before):
        writer.append(step)
    tail, found = Tail(path), list[int]()
    for step in range(before, 1000):
        writer.append(step)
        if step % 40 == 39:
            found += map(int, tail.lines())
    assert found == list(range(before, 1000))
    assert int(path.read_bytes().split()[0]) > 700


def test_what_a_killed_writer_has_written_of_the_newer_half_goes_with_the_next_one(tmp_path: Path) -> None:
    for name in ("steps.jsonl", "steps.jsonl.new"):
        (tmp_path / name).write_bytes(b"1\n2\n")
    JsonlWriter(tmp_path, "steps.jsonl", most=1000).append(3)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("steps.jsonl", b"1\n2\n3\n")]


def test_a_disk_without_room_for_the_newer_half_loses_no_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: object, new: BinaryIO, *__: int) -> None:
        new.write(b"a part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path, writer = tmp_path / "steps.jsonl", JsonlWriter(tmp_path, "steps.jsonl", most=1000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", refuse)
        for step in range(300):
            writer.append(step)
    assert [int(line) for line in path.read_bytes().split()] == list(range(300))
    assert [each.name for each in tmp_path.iterdir()] == ["steps.jsonl"]
    assert 0 < caplog.text.count("No space left on device") < 3
    for step in range(300, 600):
        writer.append(step)
    kept = [int(line) for line in path.read_bytes().split()]
    assert kept == list(range(kept[0], 600)) and kept[0] > 0


def test_a_tail_from_the_start_has_the_lines_before_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_bytes(b"first\n\nlast\n")
    assert list(Tail(path, from_start=True).lines()) == [b"first\n", b"\n", b"last\n"]


def test_a_tail_whose_last_line_is_gone_reads_all_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"first\n")
    tail = Tail(path)
    other = tmp_path / "other"
    other.write_bytes(b"second\nthird\ntorn")
    other.replace(path)
    assert list(tail.lines()) == [b"second\n", b"third\n"]
    assert tail.rest() == b"torn"


def test_the_last_step_is_that_of_the_last_line_that_is_one(tmp_path: Path) -> None:
    assert last_step(tmp_path) is None
    lines = [msgspec.json.encode(replace(LINE, step=step)) for step in (7, 3)]
    (tmp_path / "steps.jsonl").write_bytes(b"\n".join([*lines, b"no line", b"{torn"]))
    found = last_step(tmp_path)
    assert found is not None and found.step == 3


@pytest.mark.parametrize(
    ("read", "most"),
    [
        (last_step, 1 << 20),
        (lambda folder: sum(1 for _ in all_steps(folder)), 1 << 20),
        (lambda folder: list(summary(JOB, folder)), 8 << 20),
    ],
    ids=["cox status and the end as JSON", "every step", "the end"],
)
def test_the_lines_of_a_long_run_are_not_in_memory_together(
    tmp_path: Path, read: Callable[[Path], object], most: int
) -> None:
    with (tmp_path / "steps.jsonl").open("wb") as file:
        file.writelines(msgspec.json.encode(replace(LINE, step=step)) + b"\n" for step in range(40_000))
    tracemalloc.start()
    try:
        assert read(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < most < (tmp_path / "steps.jsonl").stat().st_size
    finally:
        tracemalloc.stop()


def test_the_end_of_a_run_counts_all_its_tokens_and_names_the_first_step_whose_line_is_left(tmp_path: Path) -> None:
    lines = (msgspec.json.encode(replace(LINE, step=step)) + b"\n" for step in (40, 41))
    (tmp_path / "steps.jsonl").write_bytes(b"".join(lines))
    job = {**JOB, "status": {"progress": {"tokens": "420"}}}
    assert "  steps        42, 420 tokens, loss 1.5000 at step 40 -> 1.5000" in list(summary(job, tmp_path))
    damaged = {**JOB, "status": {"progress": {"tokens": None}}}
    assert "  steps        42, 20 tokens, loss 1.5000 at step 40 -> 1.5000" in list(summary(damaged, tmp_path))


def test_a_run_whose_lines_are_all_there_counts_their_tokens_whatever_its_status_says(tmp_path: Path) -> None:
    """A status of steps that were discarded may be newer than the checkpoint."""
    lines = (msgspec.json.encode(replace(LINE, step=step)) + b"\n" for step in (0, 1))
    (tmp_path / "steps.jsonl").write_bytes(b"".join(lines))
    job = {**JOB, "status": {"progress": {"tokens": "420"}}}
    assert "  steps        2, 20 tokens, loss 1.5000 -> 1.5000" in list(summary(job, tmp_path))


@pytest.mark.parametrize(
    ("annotations", "advice"),
    [(None, "repeat the command"), ({ANNOTATION_STOP_AT: "7"}, "repeat the command without --until-step")],
)
def test_the_advice_of_a_stopped_run_can_be_followed_to_the_letter(
    tmp_path: Path, annotations: dict[str, str] | None, advice: str
) -> None:
    suspended = {"conditions": [{"type": "Suspended", "status": "True"}]}
    job = {"metadata": {"name": "demo", "annotations": annotations}, "status": suspended}
    said = list(summary(job, tmp_path / "my runs"))
    assert said[-2:] == [f"  report       cox report '{tmp_path}/my runs'", f"  to resume    {advice}"]


@pytest.mark.parametrize(
    ("content", "trainers"),
    [(b"7", 7), (b"", None), (b"-1", None), (b"x", None), (b"\xff", None), (b"9" * 5000, None)],
)
def test_a_request_for_trainers_is_a_number_and_anything_else_is_none(
    tmp_path: Path, content: bytes, trainers: int | None
) -> None:
    (tmp_path / "scale").write_bytes(content)
    assert taken_request(tmp_path) == trainers
    assert not (tmp_path / "scale").exists()


@pytest.fixture
def below_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The work directory of the job `demo`, below the current folder's runs/."""
    folder = samples.write_run(tmp_path / "runs/demo", steps=1)
    shutil.rmtree(folder / "cluster")
    samples.write_object(folder, "TrainingJob", "demo", {**defaulted(sample("TrainingJob")), "metadata": METADATA})
    log = folder / "logs/demo-trainer-0-0/trainer.log"
    log.parent.mkdir(parents=True)
    log.write_text("a line\n")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("shadow", ["nothing", "a folder", "a folder with records", "a file"])
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("status demo", "demo: not running\n"),
        ("logs demo", "[demo-trainer-0-0/trainer] a line\n"),
        ("report demo", "runs/demo/report.html\n"),
        ("scale demo 4", "the `cox run` of runs/demo has ended"),
    ],
)
def test_a_jobs_name_means_its_work_directory_in_every_command_whatever_else_has_the_name(
    below_runs: Path, command: str, said: str, shadow: str
) -> None:
    other = below_runs.parent.parent / "demo"
    if shadow == "a folder with records":
        other.mkdir()
        samples.write_lines(other / "steps.jsonl", [samples.step_line(0)])
    elif shadow != "nothing":
        other.mkdir() if shadow == "a folder" else other.write_text("")
    assert said in CliRunner().invoke(app, command.split()).output


def test_a_folder_of_records_that_was_copied_has_a_report_and_logs_and_holds_no_job(below_runs: Path) -> None:
    shutil.rmtree(below_runs / "cluster")
    copied = below_runs.rename(below_runs.parent.parent / "copied")
    for command, said in (
        ("report", "copied/report.html"),
        ("logs", "a line"),
        ("status", "copied holds no TrainingJob"),
    ):
        assert said in CliRunner().invoke(app, [command, copied.name]).output
