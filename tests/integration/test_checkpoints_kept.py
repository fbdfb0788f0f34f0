"""What keepLast and keepEvery keep, in a folder and on S3, whenever the coordinator is killed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from coxswain.config import CheckpointConfig, EndpointConfig, JobConfig
from coxswain.wire import CheckpointManifest, Shard
from coxswain_coordinator.checkpoint.store import CheckpointStore
from coxswain_link.store import Store, open_store
from tests.s3server import S3Server
from tests.unit.coordinator_fakes import make_job
from tests.unit.test_coordinator_checkpoints import collect, manifest

STEPS = range(3, 31, 3)
KEPT = [12, 24, 27, 30]  # the last two, and every twelfth


class Killed(Exception):
    """The coordinator's process is killed."""


def mortal(store: Store, deletions: int) -> Store:
    """The same store, for a process that is killed after so many deletions."""
    twin, left = copy.copy(store), iter(range(deletions))

    def delete(key: str) -> None:
        if next(left, None) is None:
            raise Killed
        store.delete(key)

    twin.delete = delete  # type: ignore[method-assign]
    return twin


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path) -> Store:
    if request.param == "folder":
        return open_store(f"file://{tmp_path}/store", create=True)
    server: S3Server = request.getfixturevalue("s3")
    endpoint = EndpointConfig(url=server.endpoint_url, region=server.region, secret="s3")
    return open_store(f"s3://{server.bucket(f'kept-{abs(hash(request.node.name))}')}", endpoint, server.secrets_dir)


@pytest.fixture
def job(tmp_path) -> JobConfig:
    config = CheckpointConfig(uri=f"file://{tmp_path}/store", keep_last=2, keep_every=12, every_steps=3)
    return make_job(tmp_path, checkpoint=config)


def saved(job: JobConfig, store: Store, step: int) -> CheckpointManifest:
    """A checkpoint with its own shard, one shared with the step before, and one shared by all."""
    names = (f"own-{step}", f"pair-{step // 6}", "common")
    for name in names:
        store.put(f"shards/{name}.safetensors", b"1234")
    return replace(manifest(job, step), shards=tuple(Shard(f"shards/{n}.safetensors", 4, (), ()) for n in names))


def assert_sound(store: Store) -> list[int]:
    """Checks that every manifest names only present shards; returns the steps."""
    there = {found.path for found in store.list("shards/")}
    manifests = [json.loads(store.get(found.path)) for found in store.list("manifests/")]
    assert not {shard["key"] for m in manifests for shard in m["shards"]} - there
    return [m["step"] for m in manifests]


def shards(store: Store) -> set[str]:
    return {found.path.removeprefix("shards/").partition(".")[0] for found in store.list("shards/")}


def test_the_last_ones_and_every_nth_stay_with_their_shards_and_nothing_else(job, store):
    checkpoints = CheckpointStore(job, store)
    checkpoints.open()
    for step in STEPS:
        checkpoints.create(saved(job, store, step))
        collect(checkpoints, set)
    assert assert_sound(store) == KEPT
    assert shards(store) == {"common", "pair-2", "pair-4", "pair-5", *(f"own-{step}" for step in KEPT)}


def test_a_shard_that_a_checkpoint_under_way_has_saved_stays(job, store):
    checkpoints = CheckpointStore(job, store)
    checkpoints.open()
    for step in STEPS:
        checkpoints.create(saved(job, store, step))
        collect(checkpoints, lambda: {"shards/own-3.safetensors"})
    assert "own-3" in shards(store)


@pytest.mark.parametrize("deletions", range(12))
def test_a_coordinator_that_is_killed_between_two_deletions_leaves_only_whole_checkpoints(job, store, deletions):
    checkpoints, reached = CheckpointStore(job, mortal(store, deletions)), 0
    checkpoints.deletes_at_once = 1
    checkpoints.open()
    with pytest.raises(Killed):
        for step in STEPS:
            reached = step
            checkpoints.create(saved(job, store, step))
            collect(checkpoints, set)
    assert reached in assert_sound(store), "the newest checkpoint has been made, and stays"
    again = CheckpointStore(job, store)
    found = again.open()
    assert found is not None
    assert found.step == reached
    for step in range(reached + 3, 31, 3):
        again.create(saved(job, store, step))
        collect(again, set)
    again.collect_orphans()
    assert assert_sound(store) == KEPT
    assert shards(store) == {"common", "pair-2", "pair-4", "pair-5", *(f"own-{step}" for step in KEPT)}
