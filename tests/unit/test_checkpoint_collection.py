"""What a location with many checkpoints costs to open, and what is deleted of it, also while others write."""

from __future__ import annotations

import msgspec
import pytest

from coxswain.config import CheckpointConfig, JobConfig
from coxswain.errors import Stale
from coxswain.planlog import manifest_key
from coxswain.wire import CheckpointManifest
from coxswain_coordinator.checkpoint.store import CheckpointStore
from coxswain_link.store import Store, StoreUnavailable
from tests.unit.coordinator_fakes import make_job
from tests.unit.test_coordinator_checkpoints import collect, manifest, shard, store_with

TORN = manifest_key(6)


def keeping(folder, last: int, every: int = 0) -> JobConfig:
    config = CheckpointConfig(uri=f"file://{folder}/store", keep_last=last, keep_every=every)
    return make_job(folder, checkpoint=config)


@pytest.fixture
def job(tmp_path) -> JobConfig:
    """Keeps the last checkpoint."""
    return keeping(tmp_path, last=1)


def saved(job: JobConfig, step: int, *shared: str) -> CheckpointManifest:
    """A checkpoint with its own shard, and with those it shares."""
    return manifest(job, step, [shard(f"own-{step}"), *map(shard, shared)])


def reads(store: Store) -> list[str]:
    """What is read from now on, and listed."""
    found: list[str] = []
    get, listed = store.get, store.list
    store.get = lambda key: (found.append(key), get(key))[1]
    store.list = lambda prefix="": (found.append(prefix), listed(prefix))[1]
    return found


def keys(store: Store, prefix: str) -> list[str]:
    return [found.path.removeprefix(prefix).partition(".")[0] for found in store.list(prefix)]


def test_of_many_kept_checkpoints_a_start_and_a_lost_world_read_the_newest_manifest_and_list_no_shards(tmp_path):
    job = keeping(tmp_path, last=1, every=6)
    store = store_with(job, *(saved(job, step) for step in range(6, 306, 6)))
    checkpoints, read = CheckpointStore(job, store), reads(store)
    assert checkpoints.open().step == checkpoints.newest().step == 300
    assert [key for key in read if key.startswith(("manifests/step", "shards/"))] == [manifest_key(300)]


def test_a_manifest_that_came_since_the_start_is_read_and_checked(job):
    store = store_with(job, saved(job, 6))
    checkpoints = CheckpointStore(job, store)
    checkpoints.open()
    store_with(job, saved(job, 12))
    assert checkpoints.newest().step == 12


def test_the_loss_of_a_world_is_survived_by_a_torn_older_manifest_and_by_a_copy_beside_the_manifests(tmp_path):
    job = keeping(tmp_path, last=2)
    store = store_with(job, saved(job, 12))
    for key in (TORN, "manifests/step-0000000099.json.bak", "manifests/x.bak"):
        store.put(key, b"{")
    checkpoints = CheckpointStore(job, store)
    assert checkpoints.open().step == checkpoints.newest().step == 12
    assert checkpoints.resumable == 6


def test_no_shard_is_deleted_while_a_kept_manifest_cannot_be_read(tmp_path, caplog):
    """It may name any."""
    job = keeping(tmp_path, last=1, every=6)
    store = store_with(job, saved(job, 7), saved(job, 8))
    store.put(TORN, b"{")
    checkpoints = CheckpointStore(job, store)
    checkpoints.open()
    collect(checkpoints, set)
    assert (keys(store, "shards/"), checkpoints.collect_orphans()) == (["own-7", "own-8"], 0)
    assert f"{TORN} is not a manifest" in caplog.text and f"delete {TORN}" in caplog.text
    assert "no checkpoint is dropped" in caplog.text
    store.delete(TORN)
    checkpoints.newest()
    collect(checkpoints, set)
    assert keys(store, "shards/") == ["own-8"]


@pytest.mark.parametrize("torn", [6, 9])
def test_a_torn_manifest_that_is_no_longer_kept_is_dropped_with_the_others(tmp_path, torn):
    job = keeping(tmp_path, last=1)
    store = store_with(job, *(saved(job, step) for step in (6, 9, 12)))
    store.put(manifest_key(torn), b"{")
    checkpoints = CheckpointStore(job, store)
    checkpoints.open()
    collect(checkpoints, set)
    assert keys(store, "manifests/") == ["step-0000000012"]
    checkpoints.collect_orphans()
    assert keys(store, "shards/") == ["own-12"]


def test_what_an_old_kept_checkpoint_shares_with_a_dropped_one_stays(tmp_path):
    """Sidecars have the same content whenever the layout is the same again."""
    job = keeping(tmp_path, last=1, every=6)
    store = store_with(job, saved(job, 6, "layout-a"), saved(job, 7), saved(job, 8, "layout-a"), saved(job, 9))
    checkpoints = CheckpointStore(job, store)
    checkpoints.open()
    collect(checkpoints, set)
    assert keys(store, "shards/") == ["layout-a", "own-6", "own-9"]


def test_a_part_of_a_collection_reads_one_manifest_or_drops_one(job):
    """A call that takes ten minutes ends the coordinator, so none does all."""
    store = store_with(job, *(saved(job, step) for step in range(1, 6)))
    checkpoints = CheckpointStore(job, store)
    checkpoints.open()
    read, left = reads(store), []
    while checkpoints.collect(set):
        left.append((len(read), len(keys(store, "manifests/"))))
        read.clear()
    assert [manifests for _, manifests in left] == [5, 5, 5, 5, 4, 3, 2, 1]
    assert {number for number, _ in left} == {1}


def test_a_collection_that_failed_amid_the_deletions_deletes_the_rest_when_it_is_repeated(job):
    store = store_with(job, manifest(job, 6, [shard(f"{i:02d}") for i in range(40)]), saved(job, 12))
    checkpoints, delete = CheckpointStore(job, store), store.delete

    def fail(key: str) -> None:
        if key == "shards/20.safetensors":
            raise StoreUnavailable("away")
        delete(key)

    checkpoints.open()
    store.delete = fail
    with pytest.raises(StoreUnavailable):
        collect(checkpoints, set)
    assert 8 <= len(keys(store, "shards/")) < 40
    store.delete = delete
    collect(checkpoints, set)
    assert keys(store, "shards/") == ["own-12"]


def test_what_a_collection_has_left_of_a_manifest_that_is_gone_is_deleted_at_the_end(job):
    """The store fails amid the deletions, and a world begins before the collection is repeated: it lists the manifests again."""
    store = store_with(job, saved(job, 6), saved(job, 12))
    checkpoints, delete = CheckpointStore(job, store), store.delete
    checkpoints.open()

    def failing(key: str) -> None:
        if key.startswith("shards/"):
            raise StoreUnavailable("the store is away")
        delete(key)

    store.delete = failing
    with pytest.raises(StoreUnavailable):
        collect(checkpoints, set)
    store.delete = delete
    checkpoints.newest()
    collect(checkpoints, set)
    assert (keys(store, "manifests/"), keys(store, "shards/")) == (["step-0000000012"], ["own-12", "own-6"])
    checkpoints.collect_garbage()
    assert keys(store, "shards/") == ["own-12"]


@pytest.mark.parametrize(
    ("moment", "name"), [("the manifest goes", "19"), ("shards go", "19"), ("it is asked what is under way", "00")]
)
def test_a_shard_of_a_manifest_that_is_made_during_a_collection_stays(job, moment, name):
    """Ranks save it once the collection has begun, and it leaves the saves under way when the manifest is made."""
    store = store_with(job, manifest(job, 6, [shard(f"{i:02d}") for i in range(20)]), saved(job, 12))
    checkpoints, delete = CheckpointStore(job, store), store.delete

    def make(now: str) -> set[str]:
        if now == moment and not store.exists(manifest_key(18)):
            checkpoints.create(manifest(job, 18, [shard(name)]))
        return set()

    checkpoints.open()
    store.delete = lambda key: (make("shards go" if key.startswith("shards/") else "the manifest goes"), delete(key))
    while store.exists(TORN):
        checkpoints.collect(lambda: make("it is asked what is under way"))
    assert keys(store, "shards/") == [name, "own-12"]


def test_a_location_with_very_many_kept_shards_is_not_searched_for_orphans(tmp_path):
    job = keeping(tmp_path, last=1, every=6)
    store = store_with(job, saved(job, 6), saved(job, 12))
    store.put("shards/orphan.safetensors", b"x")
    size = sum(len(store.get(f"manifests/{name}.json")) for name in keys(store, "manifests/"))
    checkpoints = CheckpointStore(job, store)
    assert checkpoints.collect_orphans(size - 1) == 0
    assert checkpoints.collect_orphans(size) == 1


def test_a_manifest_that_an_earlier_coordinator_has_made_stays_where_it_is_whole_and_is_replaced_where_it_is_not(job):
    store = store_with(job, manifest(job, 6, [shard("a")]), manifest(job, 12, [shard("b")]))
    store.delete("shards/b.safetensors")
    store.put(manifest_key(18), b"{")
    checkpoints = CheckpointStore(job, store)
    store.put("shards/mine.safetensors", b"1234")
    steps = (6, 12, 18)
    for step in steps:
        checkpoints.create(manifest(job, step, [shard("mine")]))
    found = [msgspec.json.decode(store.get(manifest_key(step)), type=CheckpointManifest) for step in steps]
    assert [m.shards[0] for m in found] == [shard("a"), shard("mine"), shard("mine")]


@pytest.mark.parametrize("left", [4, 3])
def test_a_coordinator_that_another_follows_before_or_amid_its_last_collection_drops_no_further_checkpoint(
    job, left: int
):
    made = [saved(job, step) for step in (6, 12, 18, 24)]
    store = store_with(job, *made)

    def fence() -> None:
        if len(keys(store, "manifests/")) <= left:
            raise Stale("another coordinator has begun")

    checkpoints = CheckpointStore(job, store, fence)
    checkpoints.open()
    for each in made:  # so what they name is known, and nothing is read before the first is dropped
        checkpoints.create(each)
    with pytest.raises(Stale, match="another coordinator"):
        checkpoints.collect_garbage()
    assert len(keys(store, "manifests/")) == left
