"""Torn, foreign and newer checkpoints are refused, each with the difference and the way out."""

from __future__ import annotations

import msgspec
import pytest
import zstandard
from msgspec.structs import replace

from coxswain.config import EvaluationConfig, TokenizerConfig
from coxswain.errors import Refused
from coxswain.planlog import generation_key
from coxswain_coordinator.checkpoint.store import RUN_KEY, CheckpointStore
from coxswain_coordinator.checkpoint.validation import check_index, run_record
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_link.store import CorruptObject, Store
from tests.unit.coordinator_fakes import make_job, store_of
from tests.unit.test_coordinator_checkpoints import manifest, shard, store_with

KEY = "manifests/step-0000000006.json"


@pytest.fixture
def job(tmp_path):
    return make_job(tmp_path)


@pytest.fixture
def store(job) -> Store:
    """A store with one whole checkpoint."""
    return store_with(job, replace(manifest(job, 6, [shard("a")]), model=job.model))


def refusal(job, store: Store) -> str:
    """Reason and message of the refusal, which changes nothing in the store."""
    before = contents(store)
    with pytest.raises(Refused) as caught:
        CheckpointStore(job, store).open()
    assert {k: v for k, v in contents(store).items() if k != RUN_KEY} == {
        k: v for k, v in before.items() if k != RUN_KEY
    }
    return f"{caught.value.reason}: {caught.value.message}"


def contents(store: Store) -> dict[str, bytes]:
    return {found.path: store.get(found.path) for found in store.list()}


@pytest.mark.parametrize(
    "left", [b"", b"{", b'{"version": 1}', b"\xff\xfe", b"[]"], ids=["empty", "cut", "bare", "bytes", "list"]
)
def test_a_torn_manifest_is_named_with_the_one_before_as_the_way_out(job, store, left):
    store.put(KEY, left)
    said = refusal(job, store)
    assert said.startswith(f"TornCheckpoint: {KEY} is not a manifest (")
    assert f"restore what is missing, or delete {KEY} to resume from the checkpoint before it" in said


def test_a_run_resumes_from_the_manifest_before_a_torn_one_that_was_deleted(job, store):
    store.put("manifests/step-0000000012.json", b"{")
    assert "delete manifests/step-0000000012.json" in refusal(job, store)
    store.delete("manifests/step-0000000012.json")
    found = CheckpointStore(job, store).open()
    assert found is not None
    assert found.step == 6


@pytest.mark.parametrize("left", [b"{", None], ids=["torn", "damaged"])
def test_a_save_of_a_step_whose_manifest_cannot_be_read_takes_its_place(job, store, monkeypatch, left):
    checkpoints, get = CheckpointStore(job, store), store.get
    checkpoints.open()

    def found(key: str) -> bytes:
        if left is None:  # S3 keeps digests of what is written
            raise CorruptObject(key)
        return left

    monkeypatch.setattr(store, "get", found)
    checkpoints.create(manifest(job, 6, [shard("b")]))
    assert b"shards/b.safetensors" in get(KEY)


def test_a_missing_shard_is_named_with_its_manifest(job, store):
    store.delete("shards/a.safetensors")
    assert f"TornCheckpoint: {KEY} names shards/a.safetensors, which is missing; restore what is missing" in refusal(
        job, store
    )


def test_a_shard_of_another_length_is_named_with_both_lengths(job, store):
    store.put("shards/a.safetensors", b"12345")
    assert "shards/a.safetensors, which has 5 bytes instead of 4" in refusal(job, store)


@pytest.mark.parametrize("left", [b"", b"{", b"null"], ids=["empty", "cut", "null"])
def test_a_torn_record_of_the_run_is_named(job, store, left):
    store.put(RUN_KEY, left)
    assert "TornCheckpoint: run.json is not a run's record (" in (said := refusal(job, store))
    assert "restore it, or start a new run with a fresh checkpoint.uri" in said


@pytest.mark.parametrize("key", [KEY, RUN_KEY])
def test_a_checkpoint_of_a_newer_release_names_both_versions(job, store, key):
    record = run_record(job) if key == RUN_KEY else manifest(job, 6)
    store.put(key, msgspec.json.encode(replace(record, version=7)))
    said = refusal(job, store)
    assert said.startswith("NewerCheckpoint: ")
    assert "has version 7, this release reads up to 2; use the release that wrote it" in said


def test_a_checkpoint_of_another_job_names_both_jobs(job, store):
    store.put(RUN_KEY, msgspec.json.encode(replace(run_record(job), job="lab/other")))
    said = refusal(job, store)
    assert "belongs to another job: lab/other, this job's is default/demo; give this job its own checkpoint.uri" in said
    assert said.startswith("ForeignCheckpoint: checkpoint.uri 'file://")


def test_a_checkpoint_of_another_optimizer_names_both_kinds(job, store):
    store.put(KEY, msgspec.json.encode(replace(manifest(job, 6, [shard("a")]), optimizer_kind="Muon")))
    said = refusal(job, store)
    assert (
        f"{KEY} belongs to another optimizer.kind: Muon, this job's is AdamW; bring back optimizer.kind Muon, or"
        in said
    )


def test_a_checkpoint_of_another_model_names_the_fields_that_differ(job, store):
    other = replace(job, model=replace(job.model, hidden=64, layers=3, preset="x", init_from="s3://w"))
    said = refusal(other, store)
    words = "another model: model.hidden 32, model.layers 2, this job's is model.hidden 64, model.layers 3; give"
    assert said.startswith(f"ForeignCheckpoint: {KEY} belongs to {words}")


@pytest.mark.parametrize(
    ("change", "theirs", "ours"),
    [
        (lambda job: replace(job, mix=replace(job.mix, seed=8)), "seed 7", "seed 8"),
        (
            lambda job: replace(job, batch=replace(job.batch, tokens_per_step=1024)),
            "batch.tokens_per_step 512",
            "batch.tokens_per_step 1024",
        ),
        (
            lambda job: replace(job, mix=replace(job.mix, sources=job.mix.sources[:1])),
            "order of sources code docs, source docs Text 'text' as bytes",
            "order of sources code, source docs absent",
        ),
        (
            lambda job: replace(job, mix=replace(job.mix, sources=job.mix.sources[::-1])),
            "order of sources code docs",
            "order of sources docs code",
        ),
        (
            lambda job: replace(job, mix=replace(job.mix, sources=tuple(of_file(s) for s in job.mix.sources))),
            "source code Text 'text' as bytes, source docs Text 'text' as bytes",
            "source code Text 'text' as file ending in </s>, source docs Text 'text' as file ending in </s>",
        ),
        (
            lambda job: replace(job, evaluation=EvaluationConfig(every_steps=2, tokens=64)),
            "evaluation.tokens absent",
            "evaluation.tokens 64",
        ),
    ],
    ids=["seed", "batch", "sources", "order", "tokenizer", "evaluation"],
)
def test_a_checkpoint_of_another_stream_names_the_fields_that_differ(job, store, change, theirs, ours):
    CheckpointStore(job, store).open()
    said = refusal(change(job), store)
    assert (
        f"another stream (mix, seed, batch or algorithm): {theirs}, this job's is {ours}; give this job its own" in said
    )


def of_file(source):
    return replace(source, tokenizer=TokenizerConfig(kind="file", uri="file:///t/tokenizer.json", eos="</s>"))


def test_a_checkpoint_without_the_fields_of_its_stream_is_refused(job, store):
    store.put(RUN_KEY, msgspec.json.encode(replace(run_record(job), stream_hash="v0:x", stream=None)))
    assert "it does not name the fields" in refusal(job, store)


def test_another_tokenizer_of_the_same_kind_is_found_by_the_index_and_named_as_one_of_two_causes(job):
    """A tokenizer.json with other content in the same place: no configuration shows it, the fingerprints do."""
    with pytest.raises(
        Refused, match="have other content, or another tokenizer, than at manifests/step-0000000006"
    ) as caught:
        check_index(manifest(job, 6), "code=9,docs=9")
    assert caught.value.message.startswith("sources code, docs")
    assert "bring back what was there, or start a new run with a fresh checkpoint.uri" in caught.value.message


NO_TEXT, NESTED = b'{"instance": "\xff"}', b'{"other": ' + b"[" * 9000


@pytest.mark.parametrize(
    "harm",
    [b"", b"not zstd", *map(zstandard.compress, (b"{}", NO_TEXT, NESTED))],
    ids=["empty", "other", "shape", "no text", "nested"],
)
def test_a_torn_record_of_the_plan_log_is_named(store, harm):
    store.put(generation_key(1), harm)
    with pytest.raises(
        Refused, match=r"log/generations/00000001.* cannot be read .* restore it, or start a new run"
    ) as caught:
        PlanLog(store).generation(1)
    assert caught.value.reason == "TornPlanLog"


@pytest.mark.parametrize(("recorded", "words"), [(7, "the newest one there is before step 6"), (99, "step 99")])
def test_a_checkpoint_below_the_recorded_step_is_refused_with_both_ways_out(job, store, recorded, words):
    with pytest.raises(Refused) as caught:
        CheckpointStore(job, store).open(recorded)
    assert caught.value.reason == "CheckpointMissing"
    assert all(said in caught.value.message for said in (words, "restore manifests/step-", "--accept-older-checkpoint"))
    assert CheckpointStore(job, store).open(6).step == 6


def test_a_place_without_any_checkpoint_is_refused_where_one_is_recorded_and_is_the_beginning_where_none_is(job):
    empty = store_of(job)
    with pytest.raises(Refused, match=r"there is none.*resume from the beginning"):
        CheckpointStore(job, empty).open(1)
    assert CheckpointStore(job, empty).open(0) is None


def test_a_run_that_planned_nothing_yet_may_have_another_mix_in_its_place(job):
    store, other = store_of(job), replace(job, mix=replace(job.mix, seed=job.mix.seed + 1))
    CheckpointStore(job, store).open()
    CheckpointStore(other, store).open()
    store.put(generation_key(1), b"{}")
    with pytest.raises(Refused, match="another stream"):
        CheckpointStore(job, store).open()
