"""Failures around a coordinator, and what its services and the operator see of them."""

from __future__ import annotations

import asyncio

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from coxswain import wire
from coxswain.config import CheckpointConfig
from coxswain.errors import Refused
from coxswain_coordinator.api.report import termination_message
from coxswain_link.http_client import JobEnded
from coxswain_link.store import open_store
from tests.unit.coordinator_fakes import TOKEN, cluster, digests_of, make_job, make_source


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> list[tuple[str, str]]:
    folder = tmp_path_factory.mktemp("calm")
    return asyncio.run(digests_of(make_job(folder), folder))


async def test_a_wrong_token_is_refused(tmp_path):
    async with cluster(make_job(tmp_path), tmp_path, token="wrong") as c:
        with pytest.raises(Refused) as caught:
            await c.register("loader", "loader-0")
        assert caught.value.reason == "TokenRejected"


async def test_a_restarted_coordinator_continues_with_the_same_digests(tmp_path, expected):
    job = make_job(tmp_path)
    async with cluster(job, tmp_path) as c:
        await c.play_until(6)
    async with cluster(job, tmp_path, instance="two") as c:
        report = await c.play()
        assert (report.phase, report.generation) == ("Completed", 2)
        assert c.digests() == expected


async def test_the_store_has_every_step_line_after_a_coordinator_and_its_run_directory_are_lost(tmp_path, expected):
    job = make_job(tmp_path)
    async with cluster(job, tmp_path) as c:
        await c.play_until(6)
    (tmp_path / "steps.jsonl").unlink()
    async with cluster(job, tmp_path, instance="two") as c:
        await c.play()
    store = open_store(job.checkpoint.uri)
    lines = b"".join(store.get(found.path) for found in store.list("steps/")).splitlines()
    steps = {line.step: line for line in (msgspec.json.decode(text, type=wire.StepLine) for text in lines)}
    assert [(steps[k].stream_digest, steps[k].delivered_digest) for k in range(20)] == expected


@pytest.mark.parametrize("trainers", [1, 3])
async def test_a_suspended_job_resumes_with_another_number_of_trainers(tmp_path, expected, trainers):
    async with cluster(make_job(tmp_path), tmp_path) as c:
        await c.client.post("/v1/stop", wire.StopRequest("suspend", at_step=9))
        report = await c.play()
        assert (report.phase, report.step, report.checkpoint_step) == ("Suspended", 9, 9)
    async with cluster(make_job(tmp_path, trainers=trainers), tmp_path, instance="two") as c:
        assert (await c.play()).phase == "Completed"
        assert c.digests() == expected


async def test_a_raised_stop_continues_the_stream(tmp_path, expected):
    for stop in (7, 20):
        async with cluster(make_job(tmp_path, stop_steps=stop), tmp_path, instance=str(stop)) as c:
            assert (await c.play()).step == stop
    assert c.digests() == expected


async def test_data_that_ends_before_the_stop_completes_the_job(tmp_path):
    job = make_job(tmp_path)
    mix = replace(job.mix, sources=(make_source("code", 700, 1), make_source("docs", 300, 1)))
    async with cluster(replace(job, mix=mix, stop_steps=1000), tmp_path) as c:
        report = await c.play()
        assert (report.phase, report.reason) == ("Completed", "DataExhausted")
        assert report.checkpoint_step == report.step == max(c.steps()) + 1
        assert sum(line.tokens for line in c.steps().values()) == sum(s.tokens for s in report.sources)


async def test_a_worker_that_reports_a_fault_of_the_user_ends_the_job(tmp_path):
    async with cluster(make_job(tmp_path), tmp_path) as c:
        simulation = asyncio.create_task(c.play())
        fault = wire.Fault("BadModel", "heads do not divide hidden")
        await c.client.get("/v1/world", wire.World, after=0, wait=30)
        await c.client.post("/v1/exits", wire.WorkerExit(1, "trainer-0", 0, 0, 2, fault))
        report = await simulation
        assert (report.phase, report.fault) == ("Failed", fault)


async def test_a_loss_that_is_not_finite_ends_the_job_before_a_checkpoint_holds_it(tmp_path):
    async with cluster(make_job(tmp_path), tmp_path) as c:
        simulation = asyncio.create_task(c.play())
        await c.client.get("/v1/world", wire.World, after=0, wait=30)
        nan = float("nan")
        spoilt = wire.StepReport(1, 0, 0, nan, 0, nan, 1e-3, 1.0, 1.0, 0.0, 0.0)
        await c.client.post("/v1/reports", spoilt, generation=1)
        report = await simulation
        assert report.fault.reason == "Diverged"
        assert report.checkpoint_step == -1


async def test_a_source_that_cannot_be_indexed_ends_the_job_by_name(tmp_path):
    async with cluster(make_job(tmp_path), tmp_path) as c:
        drive = asyncio.create_task(c.coordinator.drive())
        await c.register("loader", "loader-0")
        shares = await c.client.get("/v1/shares", wire.Shares, loader="loader-0", wait=5)
        fault = wire.Fault("SourceNotFound", "source 'code': no objects under file:///code")
        await c.client.post("/v1/indexed", wire.Indexed(shares.shares[0], (), fault=fault))
        with pytest.raises(JobEnded, match="SourceNotFound: source 'code': no objects"):
            await c.client.get("/v1/world", wire.World, after=0, wait=30, instance=c.instance_of("loader", "loader-0"))
        assert (await drive).exit_code == 2


async def test_five_worlds_that_fail_without_a_new_step_end_the_job(tmp_path):
    async with cluster(make_job(tmp_path), tmp_path) as c:
        c.crashes[0, 3] = 100
        report = await c.play()
        assert report.phase == "Failed"
        assert report.fault.reason == "WorkerCrashLoop"
        assert "5 worlds failed one after another without a new step; last: rank 0 on trainer-0" in report.fault.message


async def test_a_trainer_that_was_replaced_gets_a_new_world(tmp_path, expected):
    async with cluster(make_job(tmp_path), tmp_path) as c:
        simulation = asyncio.create_task(c.play())
        assert await c.coordinator.wait_until(lambda report: report.checkpoint_step >= 6, 60)
        c.incarnations["trainer-1"] = 1
        await c.register("trainer", "trainer-1", c.job.devices_per_trainer)
        report = await simulation
        assert report.phase == "Completed"
        assert report.generation >= 2
        assert c.digests() == expected


async def test_a_mix_of_another_seed_is_refused_and_not_read_silently(tmp_path):
    job = make_job(tmp_path)
    async with cluster(job, tmp_path) as c:
        await c.client.post("/v1/stop", wire.StopRequest("suspend", at_step=3))
        await c.play()
    mix = replace(job.mix, seed=8)
    async with cluster(replace(job, mix=mix), tmp_path, instance="two") as c:
        assert (await c.coordinator.drive()).reason == "ForeignCheckpoint"


async def test_a_batch_below_the_longest_sequence_is_refused(tmp_path):
    job = make_job(tmp_path)
    async with cluster(replace(job, batch=replace(job.batch, tokens_per_step=100)), tmp_path) as c:
        assert (await c.coordinator.drive()).reason == "BatchTooSmall"


async def test_a_job_whose_trainers_cannot_hold_the_longest_sequence_waits_for_more(tmp_path):
    job = make_job(tmp_path)
    short = replace(job, parallelism=replace(job.parallelism, tokens_per_replica=100))
    async with cluster(short, tmp_path) as c:
        simulation = asyncio.create_task(c.play())
        why = "CapacityLost: 2 replicas hold 200 tokens of one sequence, batch.maxSequenceTokens is 256"
        assert await c.coordinator.wait_until(lambda report: report.waiting_for.startswith(why), 60)
        await c.client.post("/v1/stop", wire.StopRequest("enough"))
        assert (await simulation).phase == "Suspended"


async def test_a_run_that_must_not_be_resumed_is_refused(tmp_path):
    async with cluster(make_job(tmp_path), tmp_path) as c:
        await c.play()
    never = CheckpointConfig(uri=f"file://{tmp_path}/store", resume="Never")
    async with cluster(make_job(tmp_path, uid="u2", checkpoint=never), tmp_path) as c:
        assert (await c.coordinator.drive()).reason == "RunExists"


async def test_the_page_and_the_metrics_need_no_token_and_show_no_secret(tmp_path):
    async with cluster(make_job(tmp_path), tmp_path) as c:
        await c.play()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{c.port}") as http:
            texts = [(await http.get(path)).text for path in ("/", "/metrics", "/healthz")]
        assert "Completed" in texts[0]
        assert "coxswain_step 19.0" in texts[1]
        assert not any(TOKEN in text for text in texts)


async def test_the_report_fits_into_a_termination_message(tmp_path):
    async with cluster(make_job(tmp_path), tmp_path) as c:
        report = await c.play()
        long = replace(report, events=tuple(wire.JobEvent(i, 0.0, "R", "m" * 900) for i in range(64)))
        message = termination_message(long)
        assert len(message) <= 4096
        assert msgspec.json.decode(message, type=wire.JobReport).phase == "Completed"
