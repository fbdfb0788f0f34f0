"""A tiny job, run to its end against the real coordinator, over HTTP, in this process."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from coxswain.planlog import membership_key, placement_key
from coxswain_link.store import open_store
from tests.unit.coordinator_fakes import cluster, digests_of, make_job


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> list[tuple[str, str]]:
    """Digests of thirty steps by two trainers and a loader."""
    folder = tmp_path_factory.mktemp("expected")
    return asyncio.run(digests_of(make_job(folder, stop_steps=30), folder))


async def test_a_job_runs_to_its_stop_and_says_so(tmp_path):
    async with cluster(make_job(tmp_path), tmp_path) as c:
        report = await c.play()
        assert (report.phase, report.reason, report.step, report.checkpoint_step) == (
            "Completed",
            "StopReached",
            20,
            20,
        )
        assert sorted(c.steps()) == list(range(20))


@pytest.mark.parametrize(("trainers", "loaders"), [(1, 1), (3, 3), (4, 1)])
async def test_the_stream_is_the_same_for_any_number_of_trainers_and_loaders(tmp_path, expected, trainers, loaders):
    assert await digests_of(make_job(tmp_path, trainers=trainers, loaders=loaders), tmp_path) == expected[:20]


async def test_a_killed_worker_costs_a_generation_and_not_the_stream(tmp_path, expected):
    async with cluster(make_job(tmp_path), tmp_path) as c:
        c.crashes[1, 9] = 1
        report = await c.play()
        assert (report.phase, report.generation) == ("Completed", 2)
        assert c.digests() == expected[:20]


async def test_placements_are_kept_from_the_oldest_of_the_last_checkpoints_on_and_memberships_for_good(
    tmp_path, expected
):
    """Checkpoints at 6, 12, 18 and 20; segments of eight steps. Another run goes on from there with the same stream."""
    job = make_job(tmp_path)
    job = replace(job, checkpoint=replace(job.checkpoint, keep_last=3, keep_every=6))
    async with cluster(job, tmp_path) as c:
        await c.play()
    store = open_store(job.checkpoint.uri)
    assert [o.path for o in store.list("log/placements/")] == [placement_key(1, n) for n in (1, 2)]
    assert [o.path for o in store.list("log/membership/")] == [membership_key(n) for n in range(3)]
    async with cluster(replace(job, stop_steps=30), tmp_path) as c:
        await c.play()
        assert c.digests()[-10:] == expected[-10:]
