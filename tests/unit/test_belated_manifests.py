"""A manifest that a fenced coordinator makes late, held up in a store call, names shards that were garbage by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from unittest.mock import Mock

import msgspec
import pytest

from coxswain.config import JobConfig
from coxswain.errors import Refused, Stale
from coxswain.wire import CheckpointManifest
from coxswain_coordinator.checkpoint.store import CheckpointStore
from coxswain_link.store import Store
from tests.unit.coordinator_fakes import store_of
from tests.unit.coordinator_lead import Lead, leading, small, training

pytestmark = pytest.mark.looptime


@pytest.fixture
def job(tmp_path) -> JobConfig:
    """Saves every third step, and keeps the last checkpoint."""
    return small(tmp_path)


def manifests(store: Store) -> list[tuple[int, int]]:
    """Step and generation of each."""
    return [(m.step, m.attempt_generation) for m in read(store)]


def read(store: Store) -> list[CheckpointManifest]:
    return [msgspec.json.decode(store.get(o.path), type=CheckpointManifest) for o in store.list("manifests/")]


def are_whole(store: Store) -> bool:
    """Whether every manifest names only present shards."""
    return all(store.exists(shard.key) for found in read(store) for shard in found.shards)


async def held_up(lead: Lead, step: int) -> Callable[[], Awaitable[None]]:
    """All ranks have saved this step, and the manifest is about to be made. Lets it be made, after which the coordinator ends."""
    reached, over = asyncio.Event(), asyncio.Event()
    lead.executor.before["create"], lead.executor.held["create"] = reached.set, over
    await lead.close(*range(lead.state.session.book.open, step))
    lead.save(step, 0, 1)
    await reached.wait()

    async def comes() -> None:
        over.set()
        with pytest.raises(Stale):
            await lead.work
        assert max(manifests(lead.store))[0] == step and not are_whole(lead.store)

    return comes


@asynccontextmanager
async def followed(job: JobConfig, author: str, generation: int) -> AsyncIterator[Lead]:
    """The next coordinator, whose world has other workers."""
    async with leading(job, author) as lead:
        lead.index()
        lead.arrive()
        await lead.world(generation)
        yield lead


async def test_a_later_save_of_the_same_step_takes_its_place(job):
    async with training(job) as first:
        comes = await held_up(first, 3)
        async with followed(job, "two", 2) as lead:
            await comes()
            await lead.saved(3, key="other")
            assert (manifests(lead.store), are_whole(lead.store)) == ([(3, 2)], True)


async def test_the_next_world_of_the_later_coordinator_begins_without_it(job):
    async with training(job) as first:
        comes = await held_up(first, 3)
        async with followed(job, "two", 2) as lead:
            await comes()
            lead.leave(-9, 1)
            lead.arrive(left=2)
            await lead.world(3)
            assert (lead.state.session.record.first_step, manifests(lead.store)) == (0, [])


async def test_the_coordinator_after_the_later_one_begins_without_it(job):
    async with training(job) as first:
        comes = await held_up(first, 3)
        async with followed(job, "two", 2):
            await comes()
    async with followed(job, "three", 3) as lead:
        assert (lead.state.session.record.first_step, manifests(lead.store)) == (0, [])


async def test_the_checkpoint_before_it_stays_although_only_one_is_kept(job):
    async with training(job) as first:
        await first.saved(3)
        comes = await held_up(first, 6)
        async with followed(job, "two", 2) as lead:
            await comes()
            assert manifests(lead.store) == [(3, 1), (6, 1)]
    checkpoints = CheckpointStore(job, store_of(job))
    assert (checkpoints.open().step, checkpoints.resumable) == (3, 3)
    checkpoints.collect_garbage()
    assert (manifests(store_of(job)), are_whole(store_of(job))) == ([(3, 1)], True)


async def test_a_coordinator_that_another_has_followed_does_not_delete_it(job):
    async with training(job) as first:
        comes = await held_up(first, 3)
        async with followed(job, "two", 2):
            await comes()
    checkpoints = CheckpointStore(job, store := store_of(job), Mock(side_effect=Stale("another has begun")))
    assert checkpoints.open() is None
    with pytest.raises(Stale):
        checkpoints.drop_belated()
    assert [step for step, _ in manifests(store)] == [3]


async def test_a_coordinator_that_adopts_the_later_world_does_not_count_it(job):
    async with training(job) as first:
        comes = await held_up(first, 3)
        async with followed(job, "two", 2) as lead:
            await comes()
    async with leading(job, "three") as lead:
        lead.index()
        lead.arrive(generation=2)
        await lead.world(2)
        assert (lead.state.session.adopted, lead.state.manifest, manifests(lead.store)) == (True, None, [])


async def test_one_that_comes_before_its_shards_are_garbage_counts(job):
    async with training(job) as first:
        await held_up(first, 3)
        async with leading(job, "two") as lead:
            lead.executor.before["create_generation"] = first.executor.held["create"].set
            held = lead.executor.held["collect_orphans"] = asyncio.Event()
            lead.index()
            lead.arrive()
            with pytest.raises(Stale):
                await first.work
            held.set()
            await lead.world(2)
            assert (lead.state.session.record.first_step, manifests(lead.store)) == (0, [(3, 1)])
            assert are_whole(lead.store)
            lead.leave(-9, 1)
            lead.arrive(left=2)
            await lead.world(3)
            assert lead.state.session.record.first_step == 3


async def test_a_checkpoint_that_a_later_world_began_with_is_torn_when_its_shards_are_gone(job):
    """Not late: the user has to decide."""
    async with training(job) as first:
        await first.saved(3)
        first.leave(-9, 1)
        first.arrive(left=1)
        await first.world(2)
    for found in (store := store_of(job)).list("shards/"):
        store.delete(found.path)
    with pytest.raises(Refused, match=r"names shards/3-0\.safetensors, which is missing") as refused:
        CheckpointStore(job, store).open()
    assert refused.value.reason == "TornCheckpoint"
