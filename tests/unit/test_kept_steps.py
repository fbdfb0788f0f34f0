"""A run resumes at a checkpoint and stops before it is where it was: the steps after that count nowhere."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from coxswain.errors import Refused
from coxswain.uris import file_uri
from coxswain_cli.__main__ import app
from coxswain_cli.jsonlines import JsonOutput
from coxswain_cli.kept_steps import kept_steps
from coxswain_cli.readers.folder import FolderReader
from coxswain_cli.readers.location import LocationReader
from coxswain_cli.readers.values import Progress
from coxswain_cli.reporting.json_report import facts
from coxswain_cli.summary import summary
from tests.unit import report_samples as samples
from tests.unit.test_cox_workdir import JOB, LINE

WRITTEN = [*range(10), 5, 6]
"""Steps in the order of their lines: the run resumed at step 5."""
DISCARDED, VALID = 0.25, 1.5


def loss(place: int) -> float:
    """The lowest losses are of steps that were discarded."""
    return VALID + place if place in range(5) or place >= 10 else DISCARDED


@dataclass(frozen=True)
class Numbered:
    step: int
    place: int


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ([], []),
        ([3], [0]),
        ([0, 1, 2], [0, 1, 2]),
        ([0, 1, 1], [0, 2]),
        (WRITTEN, [0, 1, 2, 3, 4, 10, 11]),
        ([0, 1, 2, 3, 1, 2, 0], [6]),
        ([4, 5, 6, 2, 3], [3, 4]),
    ],
)
def test_a_line_of_a_step_drops_those_of_it_and_of_later_steps_that_were_written_before(
    written: list[int], kept: list[int]
) -> None:
    lines = [Numbered(step, place) for place, step in enumerate(written)]
    assert [line.place for line in kept_steps(lines)] == kept


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """Of a run whose coordinator was killed at step 10 and that stopped before step 7."""
    lines = [replace(LINE, step=step, tokens=10 + place, loss=loss(place)) for place, step in enumerate(WRITTEN)]
    (tmp_path / "steps.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    samples.write_lines(tmp_path / "timings.jsonl", [samples.timing_line(step) for step in WRITTEN])
    return tmp_path


TOKENS = sum(10 + place for place in (0, 1, 2, 3, 4, 10, 11))


def test_the_end_of_a_run_has_the_steps_tokens_and_loss_of_its_last_line(workdir: Path) -> None:
    assert f"  steps        7, {TOKENS} tokens, loss 1.5000 -> {loss(11):.4f}" in list(summary(JOB, workdir))


def test_scripts_get_step_and_loss_of_one_line(workdir: Path) -> None:
    out = io.StringIO()
    JsonOutput(out).end(JOB, workdir)
    end = json.loads(out.getvalue())
    assert (end["step"], end["loss"]) == (7, loss(11))


def test_a_report_counts_and_draws_no_discarded_step(workdir: Path) -> None:
    found = facts(FolderReader(workdir).record(()))
    losses = {"first": loss(0), "last": loss(11), "best": loss(0)}
    assert (found["steps"], found["tokens"], found["loss"], found["steps_computed_again"]) == (7, TOKENS, losses, 2)
    assert max(picture["step"] for picture in found["pictured"]) == 6
    with pytest.raises(Refused, match="--steps 8: no timings of this step; recorded are 0 to 6"):
        FolderReader(workdir).record((8,))


def test_the_figures_of_trainers_are_of_steps_that_count(workdir: Path) -> None:
    slow = [samples.timing_line(step) | {"ranks": []} for step in WRITTEN[5:10]]
    good = [samples.timing_line(step) for step in WRITTEN]
    samples.write_lines(workdir / "timings.jsonl", [*good[:5], *slow, *good[10:]])
    mixed = FolderReader(workdir).record(()).trainers
    samples.write_lines(workdir / "timings.jsonl", [*good[:5], *good[10:]])
    assert mixed == FolderReader(workdir).record(()).trainers


def test_the_status_of_a_run_that_was_killed_after_it_resumed_is_that_of_its_last_line(workdir: Path) -> None:
    metadata = {"name": "demo", "namespace": "default", "uid": "u", "resourceVersion": "1", "generation": 1}
    texts = {"tokens": "100", "loss": "0.25", "tokensPerSecond": "1", "idlePercent": "0", "percent": "17"}
    status = {"progress": {"step": 10, "steps": 60, "etaSeconds": 1, **texts}}  # of before the kill
    samples.write_object(workdir, "TrainingJob", "demo", {"metadata": metadata, "spec": {}, "status": status})
    done = CliRunner().invoke(app, ["status", str(workdir)])
    assert f"  step        7/60, loss {loss(11):.4f}" in done.output
    assert FolderReader(workdir).look().step == 7


def test_a_run_that_has_ended_without_lines_has_the_step_of_its_status_but_neither_rates_nor_a_doubt(
    tmp_path: Path,
) -> None:
    metadata = {"name": "demo", "namespace": "default", "uid": "u", "resourceVersion": "1", "generation": 1}
    texts = {"tokens": "100", "loss": "0.25", "tokensPerSecond": "1", "idlePercent": "0", "percent": "17"}
    status = {"progress": {"step": 10, "steps": 60, "etaSeconds": 1, **texts}}
    samples.write_object(tmp_path, "TrainingJob", "demo", {"metadata": metadata, "spec": {}, "status": status})
    assert FolderReader(tmp_path).look().progress == Progress(10, 60, 0.25)


@pytest.fixture
def location(tmp_path: Path) -> str:
    """Of a run that was killed behind its steps before 10 and ahead of their checkpoint, and that resumed and saved at 7."""
    for folder in ("steps", "manifests"):
        (tmp_path / folder).mkdir()
    parts = {5: range(5), 10: range(5, 10), 7: range(10, 12)}
    for step, places in parts.items():
        world = 2 if step == 7 else 1
        lines = [replace(LINE, step=WRITTEN[n], worldGeneration=world, loss=loss(n)) for n in places]
        (tmp_path / f"steps/before-{step:010d}.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    for step in (5, 7):
        (tmp_path / f"manifests/step-{step:010d}.json").write_text(json.dumps({"step": step, "job": "default/demo"}))
    return file_uri(tmp_path)


def test_a_checkpoint_location_has_the_steps_of_its_newest_world(location: str) -> None:
    found = LocationReader(location).record(())
    assert [(s.step, s.loss) for s in found.steps] == [(WRITTEN[n], loss(n)) for n in (0, 1, 2, 3, 4, 10, 11)]
    progress = LocationReader(location).look().progress
    assert progress is not None and (progress.step, progress.loss) == (7, loss(11))


def test_a_location_without_lines_of_steps_is_as_far_as_its_newest_checkpoint(location: str, tmp_path: Path) -> None:
    for path in (tmp_path / "steps").iterdir():
        path.unlink()
    assert LocationReader(location).look().progress == Progress(7)
