"""A tiny job, run to its end against the real coordinator, over HTTP, in this process."""

from __future__ import annotations

import pytest

from tests.unit.coordinator_fakes import cluster, make_job


async def digests_of(job, folder) -> list[tuple[str, str]]:
    async with cluster(job, folder) as c:
        report = await c.play()
        assert report.phase == "Completed"
        return [(line.stream_digest, line.delivered_digest) for _, line in sorted(c.steps().items())]


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
async def test_the_stream_is_the_same_for_any_number_of_trainers_and_loaders(tmp_path, trainers, loaders):
    one = await digests_of(make_job(tmp_path / "a"), tmp_path / "a")
    other = make_job(tmp_path / "b", trainers=trainers, loaders=loaders)
    assert await digests_of(other, tmp_path / "b") == one


async def test_a_killed_worker_costs_a_generation_and_not_the_stream(tmp_path):
    baseline = await digests_of(make_job(tmp_path / "a"), tmp_path / "a")
    async with cluster(make_job(tmp_path / "b"), tmp_path / "b") as c:
        c.crashes[1, 9] = 1
        report = await c.play()
        assert (report.phase, report.generation) == ("Completed", 2)
        assert [(s.stream_digest, s.delivered_digest) for _, s in sorted(c.steps().items())] == baseline
