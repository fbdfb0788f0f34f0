from __future__ import annotations

from collections.abc import Callable
from threading import Barrier
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coxswain.boxes import Box
from coxswain.config import CheckpointConfig
from coxswain.digests import STREAM_SEED
from coxswain.errors import Refused, Stale
from coxswain.membership.stream import initial_cursor
from coxswain.planlog import manifest_key, manifest_step
from coxswain.wire import CheckpointManifest, Listing, Shard, ShardsSaved
from coxswain_coordinator.checkpoint.pending import PendingCheckpoints, kept_steps, objects, unnamed
from coxswain_coordinator.checkpoint.store import CheckpointStore
from coxswain_coordinator.checkpoint.validation import (
    check_index,
    job_of,
    manifest_key_of,
    stream_hash,
    version_of,
)
from coxswain_link.store import NotFound, Store, open_store
from tests.unit.coordinator_fakes import make_job


def shard(name: str) -> Shard:
    return Shard(f"shards/{name}.safetensors", 4, (), ())


def manifest(job, step: int, shards=()) -> CheckpointManifest:
    return CheckpointManifest(
        version=1, job=job_of(job), step=step, attempt_generation=1, cursor=initial_cursor(job.mix),
        stream_digest=STREAM_SEED, tokens=0, model_hash=job.model_hash(), stream_hash=stream_hash(job),
        index_hash="code=1,docs=2", vocabulary=320, shards=tuple(shards), time=0.0,
    )  # fmt: skip


def store_with(job, *manifests: CheckpointManifest) -> Store:
    store = open_store(job.checkpoint.uri, create=True)
    for m in manifests:
        store.put(manifest_key_of(m), msgspec.json.encode(m))
        for s in m.shards:
            store.put(s.key, b"1234")
    return store


def collect(checkpoints: CheckpointStore, pending: Callable[[], set[str]]) -> None:
    """All parts of a collection."""
    while checkpoints.collect(pending):
        pass


def refusal(job, store: Store) -> tuple[str, str]:
    with pytest.raises(Refused) as caught:
        CheckpointStore(job, store).open()
    return caught.value.reason, caught.value.message


def test_the_newest_checkpoint_is_the_one_to_resume_from(tmp_path):
    job = make_job(tmp_path)
    store = store_with(job, manifest(job, 6, [shard("a")]), manifest(job, 12, [shard("b")]))
    found = CheckpointStore(job, store).open()
    assert found is not None
    assert found.step == 12


def test_a_fresh_location_has_no_checkpoint(tmp_path):
    job = make_job(tmp_path)
    found = CheckpointStore(job, store_with(job))
    assert (found.open(), found.resumable) == (None, 0)


@pytest.mark.parametrize(("last", "step"), [(1, 20), (2, 18), (3, 12), (4, 6), (9, 6)])
def test_a_world_may_begin_with_the_oldest_of_the_last_checkpoints_whatever_else_is_kept(tmp_path, last, step):
    job = make_job(tmp_path, checkpoint=CheckpointConfig(uri=f"file://{tmp_path}", keep_last=last, keep_every=6))
    found = CheckpointStore(job, store_with(job, *(manifest(job, saved) for saved in (6, 12, 18, 20))))
    assert found.open() and found.resumable == step


def test_a_manifest_of_a_later_version_is_refused_before_its_shape_is_read(tmp_path):
    job = make_job(tmp_path)
    store = store_with(job)
    store.put("manifests/step-0000000006.json", b'{"version": 9, "shape": "unknown"}')
    reason, message = refusal(job, store)
    assert reason == "NewerCheckpoint"
    assert "has version 9, this release reads up to 2" in message


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        pytest.param({"job": "default/other"}, "another job: default/other", id="job"),
        pytest.param({"model_hash": "x"}, "another model", id="model"),
        pytest.param({"stream_hash": "v0:x"}, "another stream", id="stream"),
    ],
)
def test_a_foreign_checkpoint_is_refused_with_what_is_foreign(tmp_path, changes, what):
    job = make_job(tmp_path)
    reason, message = refusal(job, store_with(job, replace(manifest(job, 6), **changes)))
    assert reason == "ForeignCheckpoint"
    assert what in message
    assert "give this job its own checkpoint.uri" in message


def test_the_location_of_another_job_is_foreign_before_its_first_checkpoint(tmp_path):
    job = make_job(tmp_path)
    CheckpointStore(job, store_with(job)).open()
    other = replace(job, name="other", uid="u2")
    assert refusal(other, store_with(other))[0] == "ForeignCheckpoint"


def test_resume_never_refuses_another_run_and_continues_its_own(tmp_path):
    config = CheckpointConfig(uri=f"file://{tmp_path}/store", resume="Never")
    job = make_job(tmp_path, checkpoint=config)
    assert CheckpointStore(job, store_with(job)).open() is None
    assert CheckpointStore(job, store_with(job)).open() is None
    reason, message = refusal(replace(job, uid="u2"), store_with(job))
    assert reason == "RunExists"
    assert "set it to Auto to continue that run, or give a fresh checkpoint.uri" in message


def test_a_job_that_a_backup_restored_under_another_uid_continues_its_run_from_the_newest_checkpoint(tmp_path):
    """In its namespace and under its name. In another namespace it is another job, which needs its own place."""
    job = make_job(tmp_path)
    CheckpointStore(job, store_with(job, manifest(job, 6))).open()
    restored = CheckpointStore(replace(job, uid="u2"), store_with(job)).open()
    assert restored is not None and restored.step == 6
    assert refusal(replace(job, uid="u2", namespace="lab-2"), store_with(job))[0] == "ForeignCheckpoint"


@given(st.sets(st.integers(0, 200)), st.integers(0, 5), st.integers(0, 50))
def test_the_last_and_every_nth_checkpoint_are_kept(steps, last, every):
    kept = kept_steps(CheckpointConfig(uri="x", keep_last=last, keep_every=every), steps)
    newest = set(sorted(steps)[-max(last, 1) :])
    assert kept == newest | {s for s in steps if every and s % every == 0}


def test_garbage_is_what_no_manifest_names():
    assert unnamed({"a", "b", "c", "d"}, [objects(["b"]), objects(["c", "e"])]) == ["a", "d"]
    assert unnamed(["a"], []) == ["a"]
    assert unnamed([], [objects(["a"])]) == []


def test_creating_a_checkpoint_drops_the_oldest(tmp_path):
    job = make_job(tmp_path, checkpoint=CheckpointConfig(uri=f"file://{tmp_path}/store", keep_last=1))
    store = store_with(job, manifest(job, 6, [shard("a")]))
    checkpoints = CheckpointStore(job, store)
    checkpoints.open()
    checkpoints.create(manifest(job, 12, [shard("b")]))
    collect(checkpoints, set)
    assert [o.path for o in store.list("manifests/")] == ["manifests/step-0000000012.json"]
    with pytest.raises(NotFound):
        store.get("shards/a.safetensors")


@pytest.mark.parametrize(("asked", "left"), [(1, [3, 6, 9, 12]), (5, [6, 9, 12]), (6, [9, 12])])
def test_a_coordinator_that_another_follows_at_its_end_drops_no_further_checkpoint(tmp_path, asked, left):
    """It reads three manifests, then drops three checkpoints. The fence refuses when it is asked for the nth time."""
    job = make_job(tmp_path, checkpoint=CheckpointConfig(uri=f"file://{tmp_path}/store", keep_last=1))
    store = store_with(job, *(manifest(job, step, [shard(str(step))]) for step in (3, 6, 9, 12)))
    checkpoints = CheckpointStore(job, store, Mock(side_effect=[None] * (asked - 1) + [Stale("another has begun")]))
    checkpoints.open()
    with pytest.raises(Stale):
        checkpoints.collect_garbage()
    assert [manifest_step(o.path) for o in store.list("manifests/")] == left


def test_shards_of_saves_that_never_completed_are_orphans(tmp_path):
    job = make_job(tmp_path)
    store = store_with(job, manifest(job, 6, [shard("a")]))
    store.put("shards/orphan.safetensors", b"x")
    checkpoints = CheckpointStore(job, store)
    checkpoints.open()
    assert checkpoints.collect_orphans() == 1
    assert [o.path for o in store.list("shards/")] == ["shards/a.safetensors"]


def test_a_checkpoint_is_complete_once_every_rank_has_saved():
    book = PendingCheckpoints(1)
    book.add(ShardsSaved(1, 6, 0, 2, (shard("a"),), 1.0))
    assert book.complete(2) is None
    book.add(ShardsSaved(1, 6, 1, 2, (shard("a"), shard("b")), 2.0))
    assert book.complete(2) == 6
    assert [s.key for s in book.shards(6)] == ["shards/a.safetensors", "shards/b.safetensors"]
    assert book.seconds(6) == 2.0


def test_the_shards_of_a_checkpoint_are_in_the_order_of_ranks_whichever_has_saved_first():
    book = PendingCheckpoints(1)
    for rank in (2, 0, 1):
        book.add(ShardsSaved(1, 6, rank, 3, (shard(f"of-{rank}"),), 1.0))
    assert [s.key for s in book.shards(6)] == [f"shards/of-{rank}.safetensors" for rank in range(3)]


def test_of_ranks_whose_shards_have_equal_content_each_keeps_its_boxes():
    """Zeros of unused rows, say: the object is one, and each rank has other boxes in it."""
    mine, others = (replace(shard("a"), boxes=(Box("norm", (row,), (4,)),), kinds=("value",)) for row in (0, 4))
    book = PendingCheckpoints(1)
    for rank, saved in enumerate((mine, others)):
        book.add(ShardsSaved(1, 6, rank, 2, (saved,), 1.0))
    assert book.shards(6) == (mine, others)


def test_a_checkpoint_that_a_coordinator_before_has_made_stays_until_it_is_dropped_with_its_shards(tmp_path):
    job = make_job(tmp_path, checkpoint=CheckpointConfig(uri=f"file://{tmp_path}/store", keep_last=1))
    store = store_with(job)
    checkpoints = CheckpointStore(job, store)
    checkpoints.open()
    store_with(job, manifest(job, 6, [shard("a")]))
    checkpoints.create(manifest(job, 6, [shard("b")]))
    collect(checkpoints, set)
    assert [o.path for o in store.list("shards/")] == ["shards/a.safetensors"]
    assert CheckpointStore(job, store).open().shards == (shard("a"),)
    checkpoints.create(manifest(job, 12))
    collect(checkpoints, set)
    assert store.list("shards/") == []


@pytest.mark.parametrize(
    ("now", "changed"),
    [("code=1", "docs"), ("code=1,docs=2,news=3", "news"), ("docs=2", "code"), ("code=1,docs=3", "docs")],
)
def test_a_source_that_was_changed_taken_away_or_added_since_the_checkpoint_is_named(tmp_path, now, changed):
    with pytest.raises(Refused, match=f"sources {changed} have other content") as caught:
        check_index(manifest(make_job(tmp_path), 6), now)
    assert caught.value.reason == "SourceChanged"


def test_an_index_of_the_same_sources_in_another_order_is_the_checkpoints(tmp_path):
    check_index(manifest(make_job(tmp_path), 6), "docs=2,code=1")


def test_a_made_checkpoint_drops_the_saves_of_its_step_and_before_and_keeps_those_behind():
    book = PendingCheckpoints(1)
    for step in (3, 6, 9):
        book.add(ShardsSaved(1, step, 0, 1, (shard(str(step)),), 1.0))
    assert (book.complete(1), book.newest(0), book.newest(1)) == (3, 9, 0)
    book.forget(6)
    assert (book.complete(1), book.pending_keys()) == (9, {"shards/9.safetensors"})


def test_a_deleted_manifest_goes_before_its_shards(tmp_path):
    job = make_job(tmp_path, checkpoint=CheckpointConfig(uri=f"file://{tmp_path}/store", keep_last=1))
    store = store_with(job, manifest(job, 6, [shard("a")]))
    deleted = []
    store.delete = deleted.append
    checkpoints = CheckpointStore(job, store)
    checkpoints.open()
    checkpoints.create(manifest(job, 12, [shard("b")]))
    collect(checkpoints, set)
    assert deleted == ["manifests/step-0000000006.json", "shards/a.safetensors"]


@pytest.mark.parametrize(("uid", "resume"), [("u1", "Auto"), ("u2", "Auto"), ("u1", "Never")])
def test_a_location_is_reopened_by_the_same_run_and_by_the_next_one_that_may_resume(tmp_path, uid, resume):
    job = make_job(tmp_path)
    CheckpointStore(job, store_with(job, manifest(job, 6))).open()
    config = replace(job.checkpoint, resume=resume)
    found = CheckpointStore(replace(job, uid=uid, checkpoint=config), store_with(job)).open()
    assert found is not None and found.step == 6


@pytest.mark.timeout(30)
def test_sixteen_shards_are_deleted_at_a_time(tmp_path):
    """The barrier breaks when they come one by one."""
    job = make_job(tmp_path, checkpoint=CheckpointConfig(uri=f"file://{tmp_path}/store", keep_last=1))
    store, together = store_with(job, manifest(job, 6, [shard(str(i)) for i in range(32)])), Barrier(16, timeout=10)
    delete = store.delete
    store.delete = lambda key: (together.wait() if key.startswith("shards/") else 0, delete(key))
    checkpoints = CheckpointStore(job, store)
    checkpoints.open()
    checkpoints.create(manifest(job, 12))
    collect(checkpoints, set)
    assert store.list("shards/") == []


def test_a_shard_that_a_rank_saves_again_during_a_collection_stays(tmp_path):
    job = make_job(tmp_path, checkpoint=CheckpointConfig(uri=f"file://{tmp_path}/store", keep_last=1))
    store = store_with(job, manifest(job, 6, [shard(f"{i:02d}") for i in range(20)]))
    pending: set[str] = set()
    delete = store.delete
    store.delete = lambda key: (pending.add("shards/19.safetensors"), delete(key))
    checkpoints = CheckpointStore(job, store)
    checkpoints.open()
    checkpoints.create(manifest(job, 12))
    collect(checkpoints, lambda: set(pending))
    assert [o.path for o in store.list("shards/")] == ["shards/19.safetensors"]


def test_a_sidecar_is_checked_kept_and_dropped_with_its_shard(tmp_path):
    job = make_job(tmp_path)
    listed = replace(shard("a"), listing=Listing("shards/a.boxes.json.zst", 4, ()))
    found = replace(manifest(job, 6, (listed,)), version=version_of((listed,)))
    store = store_with(job, found)
    reason, message = refusal(job, store)
    assert (reason, "names shards/a.boxes.json.zst, which is missing" in message) == ("TornCheckpoint", True)
    store.put("shards/a.boxes.json.zst", b"long")
    checkpoints = CheckpointStore(job, store)
    assert checkpoints.open() == found
    assert checkpoints.collect_orphans() == 0
    older = store_with(job, manifest(job, 3, (listed,)))
    last = CheckpointStore(replace(job, checkpoint=replace(job.checkpoint, keep_last=1)), older)
    last.open()
    collect(last, set)
    assert [o.path for o in older.list("shards/")] == sorted(listed.objects)
    last.create(manifest(job, 9))
    collect(last, set)
    assert older.list("shards/") == []


@pytest.mark.parametrize("step", [0, 6, 9_999_999_999, 10_000_000_000])
def test_the_key_of_a_manifest_says_its_step_and_that_of_another_object_says_none(step):
    key = manifest_key(step)
    assert manifest_step(key) == step
    assert not [
        other
        for other in (f"{key}.bak", f"old/{key}", key[:-1], f"{key}#1", "manifests/x.bak")
        if manifest_step(other) is not None
    ]


def test_a_manifest_has_the_earliest_version_that_has_all_of_it():
    listed = replace(shard("a"), listing=Listing("shards/a.boxes.json.zst", 4, ()))
    assert (version_of((shard("a"),)), version_of((shard("a"), listed))) == (1, 2)
