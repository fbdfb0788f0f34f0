"""`cox status` and `cox report` of a checkpoint location that a real coordinator has filled."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from typer.testing import CliRunner

from coxswain.config import JobConfig
from coxswain.planlog import membership_key, mix_key, steps_key
from coxswain.uris import file_path, file_uri
from coxswain_cli.__main__ import app
from coxswain_cli.readers.folder import FolderReader
from coxswain_cli.readers.location import LocationReader
from coxswain_cli.readers.stored_run import StoredRun, open_location
from coxswain_cli.reporting.model import RecordedRun
from coxswain_coordinator.state.history import MOST_STEPS
from coxswain_link.store import open_store
from tests.unit import report_samples as samples
from tests.unit.coordinator_fakes import Cluster, cluster, make_job

EDITED_AT, STEPS = 8, 20
BEFORE, AFTER = {"code": 700, "docs": 300}, {"code": 100, "docs": 900}


def edited(job: JobConfig) -> JobConfig:
    sources = tuple(msgspec.structs.replace(s, weight=AFTER[s.name]) for s in job.mix.sources)
    return msgspec.structs.replace(job, mix=msgspec.structs.replace(job.mix, sources=sources), stop_steps=STEPS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the store of a job of 20 steps whose weights were edited before step 8, and its steps.jsonl."""
    folder = tmp_path_factory.mktemp("whole")
    asyncio.run(train(folder))
    return folder


async def train(folder: Path, most: int = MOST_STEPS) -> None:
    """`most`: bytes of steps.jsonl."""
    lines = []
    first = make_job(folder, stop_steps=EDITED_AT)
    for number, part in enumerate((first, edited(first))):
        async with cluster(part, folder / f"part-{number}", instance=str(number)) as run:
            run.folder.mkdir()
            writer = run.coordinator.state.history.steps
            assert writer.most == MOST_STEPS
            writer.most = most
            await played(run)
            lines.append((run.folder / "steps.jsonl").read_text())
    (folder / "steps.jsonl").write_text("".join(lines))


@pytest.fixture
def job(whole: Path, tmp_path: Path) -> JobConfig:
    """The job, in a copy of the folder that a test may damage."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    return edited(make_job(tmp_path))


async def played(run: Cluster) -> None:
    assert (await run.play()).phase == "Completed"


def cox(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.output


def test_the_status_of_a_location_has_the_last_step_its_loss_the_checkpoints_and_every_mix(
    job: JobConfig, tmp_path: Path
) -> None:
    last = json.loads((tmp_path / "steps.jsonl").read_text().splitlines()[-1])
    code, said = cox("status", job.checkpoint.uri)
    assert code == 0, said
    assert said.startswith("demo: Stored\n")
    assert f"  step        {STEPS}, loss {last['loss']:.4f}\n" in said
    assert f"  checkpoint  before step {STEPS}, {job.checkpoint.uri}/manifests/step-0000000020.json, saved 2" in said
    assert f"stream digest {last['stream_digest']}" in said
    assert "  mix         from step 0: code 700, docs 300\n" in said
    assert f"  mix         from step {EDITED_AT}: code 100, docs 900\n" in said


def test_the_report_of_a_location_has_the_steps_that_the_run_itself_recorded(job: JobConfig, tmp_path: Path) -> None:
    run = LocationReader(job.checkpoint.uri).record(())
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [(s.step, s.loss, s.stream_digest) for s in run.steps] == [
        (line["step"], line["loss"], line["stream_digest"]) for line in lines
    ]
    code, said = cox("report", job.checkpoint.uri, "--output", tmp_path / "r.html")
    assert (code, said.splitlines()[-1]) == (0, str(tmp_path / "r.html"))
    assert "holds neither events nor timings" in (tmp_path / "r.html").read_text()


def test_the_report_of_a_work_directory_has_the_steps_whose_lines_it_no_longer_has(
    job: JobConfig, tmp_path: Path
) -> None:
    samples.write_object(tmp_path, "ConfigMap", "demo", {"data": {"job.json": msgspec.json.encode(job).decode()}})
    whole = FolderReader(tmp_path).record(())
    lines = (tmp_path / "steps.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "newer").write_text("".join(lines[STEPS // 2 :]))
    (tmp_path / "newer").replace(tmp_path / "steps.jsonl")
    assert FolderReader(tmp_path).record(()) == whole
    shutil.rmtree(file_path(job.checkpoint.uri))
    run = FolderReader(tmp_path).record(())
    assert [s.step for s in run.steps] == list(range(STEPS // 2, STEPS))
    assert any(note.startswith(f"steps before {STEPS // 2} are missing: those at file:") for note in run.notes)


def test_a_run_keeps_its_newest_lines_within_a_limit_and_its_report_has_every_step(tmp_path: Path) -> None:
    asyncio.run(train(tmp_path, most=4000))
    folder, job = tmp_path / "part-1", edited(make_job(tmp_path))
    lines = [json.loads(line)["step"] for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert (folder / "steps.jsonl").stat().st_size <= 4000
    assert lines[0] > EDITED_AT and lines == list(range(lines[0], STEPS))
    samples.write_object(folder, "ConfigMap", "demo", {"data": {"job.json": msgspec.json.encode(job).decode()}})
    assert [s.step for s in FolderReader(folder).record(()).steps] == list(range(STEPS))


def test_the_wanted_shares_follow_the_weights_of_each_step_and_not_those_of_now(job: JobConfig, tmp_path: Path) -> None:
    """In the report of the work directory, whose job.json has the edited mix only."""
    samples.write_object(tmp_path, "ConfigMap", "demo", {"data": {"job.json": msgspec.json.encode(job).decode()}})
    run = FolderReader(tmp_path).record(())
    assert [(m.first_step, m.record.weights) for m in run.mixes] == [(0, BEFORE), (EDITED_AT, AFTER)]
    code, said = cox("report", tmp_path, "--json")
    wanted = {s["name"]: s["wanted"] for s in json.loads(said)["sources"]}
    assert wanted["code"] == pytest.approx(share_of_code(run))
    assert (code, 0.1 < wanted["code"] < 0.7) == (0, True)


def share_of_code(run: RecordedRun) -> float:
    """By the definition: 0.7 of each step before the edit, 0.1 of each after it."""
    wanted = sum(s.tokens * (0.7 if s.step < EDITED_AT else 0.1) for s in run.steps)
    return wanted / sum(s.tokens for s in run.steps)


def test_a_work_directory_whose_checkpoints_are_gone_draws_the_mix_of_now_and_says_so(
    job: JobConfig, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "store")
    samples.write_object(tmp_path, "ConfigMap", "demo", {"data": {"job.json": msgspec.json.encode(job).decode()}})
    run = FolderReader(tmp_path).record(())
    assert [(m.first_step, m.record.weights) for m in run.mixes] == [(0, AFTER)]
    assert run.notes[0].startswith("the mix is drawn as it is now: earlier ones at file://")


def test_the_memberships_of_a_run_whose_mix_was_never_edited_are_not_listed(
    job: JobConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million steps have 125,000 of them."""
    (tmp_path / "store" / mix_key(1)).unlink()
    store, asked = open_store(job.checkpoint.uri), list[str]()
    monkeypatch.setattr(store, "list", lambda prefix="": asked.append(prefix) or [])
    assert ([m.first_step for m in StoredRun(store).mixes()], asked) == ([0], [])


def test_a_mix_that_no_step_uses_yet_is_not_drawn(job: JobConfig, tmp_path: Path) -> None:
    for segment in sorted((tmp_path / "store/log/membership").iterdir())[1:]:
        segment.unlink()
    assert [m.first_step for m in open_location(job.checkpoint.uri).mixes()] == [0]


@pytest.mark.parametrize("key", [mix_key(0), membership_key(0), "run.json", "manifests/step-0000000020.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe\x00"])
def test_a_damaged_object_of_a_location_is_named(job: JobConfig, tmp_path: Path, key: str, content: bytes) -> None:
    (tmp_path / "store" / key).write_bytes(content)
    code, said = cox("status", job.checkpoint.uri)
    assert (code, len(said.splitlines()), key in said) == (2, 1, True), said


def test_segments_without_a_step_use_no_mix_and_a_size_beyond_memory_is_damage(job: JobConfig, tmp_path: Path) -> None:
    segments = sorted((tmp_path / "store/log/membership").iterdir())
    empty = {"memberships": [], "mix": 1}
    for segment in segments[1:]:
        segment.write_bytes(zstandard.compress(json.dumps(empty).encode()))
    assert [m.first_step for m in open_location(job.checkpoint.uri).mixes()] == [0]
    header = b"\x28\xb5\x2f\xfd\xe0" + (2**50).to_bytes(8, "little")
    (tmp_path / "store" / mix_key(0)).write_bytes(header + b"\x01\0\0")
    code, said = cox("status", job.checkpoint.uri)
    assert (code, len(said.splitlines()), f"{mix_key(0)} cannot be read" in said) == (2, 1, True), said


@pytest.mark.parametrize("command", ["status", "report"])
def test_a_bucket_that_is_no_text_is_refused_in_one_line(command: str) -> None:
    """As an argument of other bytes than UTF-8 comes."""
    code, said = cox(command, "s3://b/\udcff")
    assert (code, len(said.splitlines()), "is no UTF-8" in said) == (2, 1, True), said


@pytest.mark.parametrize("command", ["status", "report", "logs"])
def test_a_location_without_a_run_is_refused_in_one_line(tmp_path: Path, command: str) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        code, said = cox(command, file_uri(folder))
        assert (code, len(said.splitlines()), str(folder) in said) == (2, 1, True), said


def test_a_location_cannot_be_in_a_cluster_too(tmp_path: Path) -> None:
    code, said = cox("status", file_uri(tmp_path), "--namespace", "x")
    assert (code, "leave --kubeconfig, --context and --namespace out" in said) == (2, True)


def test_few_objects_of_a_long_run_are_in_memory_at_a_time(tmp_path: Path) -> None:
    store, read = open_store(tmp_path.as_uri(), create=True), list[str]()
    for number in range(200):
        store.put(steps_key(number + 1, 1), b"%d\n" % number)

    class Counting:
        list = staticmethod(store.list)

        def get(self, key: str) -> bytes:
            read.append(key)
            return store.get(key)

    counting: Any = Counting()
    lines = StoredRun(counting).step_lines()
    assert next(lines) == b"0" and len(read) <= 16
    assert list(lines) == [b"%d" % number for number in range(1, 200)]
