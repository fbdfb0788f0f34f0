"""Checkpoints in a whole run: a bad one is refused and stays as it was.

What is slow here has a twin in tests/unit that asserts the same words.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local.jobs import Run, job_objects

pytestmark = pytest.mark.timeout(180)

MANIFEST = "manifests/step-0000000003.json"


@pytest.fixture(scope="module")
def first(tmp_path_factory, corpus):
    """The folder of the checkpoints of a run that stopped before step 3."""
    folder = tmp_path_factory.mktemp("first")
    run = Run(folder, job_objects(corpus, f"file://{folder}/checkpoints", trainers=1))
    assert run.run("--until-step", "3") == 0, run.output + run.logs()
    return folder / "checkpoints"


@pytest.fixture
def run(tmp_path, corpus, first):
    """Another run, of the same job, over a copy of these checkpoints."""
    shutil.copytree(first, tmp_path / "checkpoints")
    return Run(tmp_path, job_objects(corpus, f"file://{tmp_path}/checkpoints", trainers=1, stop={"steps": 4}))


def refused(run: Run, *words: str) -> None:
    """Runs the job; expects a refusal with these phrases, no training, unchanged checkpoints."""
    before = contents(run.folder / "checkpoints")
    assert run.run() == 1, run.output + run.logs()
    said = re.sub(r"\s+", " ", run.output)
    assert all(word in said for word in words), run.output + run.logs()
    assert "Traceback" not in run.output
    assert not run.steps()
    assert contents(run.folder / "checkpoints") == before


def contents(folder: Path) -> dict[str, bytes]:
    """Without the plan log: a world is recorded and planned before its workers load a checkpoint."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {
        path: content for path, content in found.items() if not path.startswith(("log/generations/", "log/placements/"))
    }


def edit(path: Path, change: Callable[[dict], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def shard(run: Run) -> Path:
    return next((run.folder / "checkpoints" / "shards").iterdir())


def test_a_checkpoint_of_another_model_names_the_field_that_differs(run):
    run.objects[-1]["spec"]["model"]["config"]["hidden"] = 64
    refused(
        run, "ForeignCheckpoint", "another model: model.hidden 32, this job's is model.hidden 64; give this job its own"
    )


@pytest.mark.slow
def test_a_checkpoint_of_another_optimizer_names_both_kinds(run):
    run.objects[-1]["spec"]["optimizer"]["kind"] = "Muon"
    refused(
        run, "ForeignCheckpoint", "another optimizer.kind: AdamW, this job's is Muon; bring back optimizer.kind AdamW"
    )


@pytest.mark.slow
def test_a_checkpoint_of_another_mix_names_the_field_that_differs(run):
    run.objects[2]["spec"]["seed"] = 8
    refused(run, "ForeignCheckpoint", "seed 7, this job's is seed 8; give this job its own checkpoint.uri")


@pytest.mark.slow
def test_a_checkpoint_of_another_job_names_both(run):
    run.objects[-1]["metadata"]["name"] = "large"
    refused(run, "ForeignCheckpoint", "another job: default/small, this job's is default/large")


@pytest.mark.slow
def test_a_checkpoint_of_a_newer_release_names_both_versions(run):
    edit(run.folder / "checkpoints" / MANIFEST, lambda m: m.update(version=9))
    refused(run, "NewerCheckpoint", "has version 9, this release reads up to 2; use the release that wrote it")


@pytest.mark.slow
def test_a_checkpoint_of_other_data_names_the_source(run):
    edit(
        run.folder / "checkpoints" / MANIFEST, lambda m: m.update(index_hash=m["index_hash"].replace("docs=", "docs=0"))
    )
    refused(run, "SourceChanged", "sources docs have other content, or another tokenizer, than at manifests/step-")


@pytest.mark.slow
def test_a_location_that_must_not_be_resumed_from_is_refused_with_the_run_that_owns_it(run):
    run.objects[-1]["spec"]["checkpoint"]["resume"] = "Never"
    refused(run, "RunExists", "checkpoint.resume is Never; set it to Auto to continue that run, or give a fresh")


def test_a_torn_manifest_is_named_with_the_way_out_which_leads_out(run):
    path = run.folder / "checkpoints" / MANIFEST
    path.write_bytes(path.read_bytes()[:100])
    refused(
        run,
        "TornCheckpoint",
        f"{MANIFEST} is not a manifest",
        f"restore what is missing, or delete {MANIFEST} to resume from the checkpoint before",
    )
    path.unlink()
    assert Run(run.folder / "again", run.objects).run() == 0


@pytest.mark.slow
def test_a_missing_shard_is_named_before_a_worker_starts(run):
    lost = shard(run)
    lost.unlink()
    refused(run, "TornCheckpoint", f"{MANIFEST} names shards/{lost.name}, which is missing")


def test_a_shard_with_one_flipped_bit_is_named_and_the_run_resumes_once_it_is_restored(run):
    path = shard(run)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(run, "TornCheckpoint", f"{path.name} is damaged: its content is not what its name says; restore it")
    path.write_bytes(whole)
    assert Run(run.folder / "again", run.objects).run() == 0
