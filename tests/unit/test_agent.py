"""The agent runs one worker a seat in each world, and outlasts coordinators."""

import asyncio
import dataclasses
import os
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from coxswain.errors import Retryable
from tests.fake_coordinator import FakeCoordinator
from tests.unit import agent_fakes
from tests.unit.agent_fakes import FOREVER, TOKEN, Started, is_alive, on, wait_until, workers, workers_out, world


@pytest.fixture
def coordinator():
    with FakeCoordinator(TOKEN) as coordinator:
        yield coordinator


async def test_every_seat_of_a_trainer_gets_a_worker_with_its_rank_and_device(tmp_path, coordinator, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    env = on("h100-80g", 1, coordinator.url)
    monkeypatch.setattr(agent_fakes, "environment", lambda *_: env)
    async with Started(coordinator.url, tmp_path, FOREVER, index=1):
        coordinator.publish(world(1))
        seen = await workers(tmp_path, 1, 2)
    assert [w["CUDA_VISIBLE_DEVICES"] for w in seen] == ["4", "5"]
    assert {path.name for path in tmp_path.glob("*.json")} == {"1-2.json", "1-3.json"}
    assert coordinator.received["/v1/register"][0].devices == 2


async def test_running_workers_join_the_new_world_and_only_the_killed_one_is_replaced(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, "while True: take()") as started:
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        os.kill(old[0]["pid"], 9)
        await coordinator.seen("/v1/exits")
        assert b"coxswain_agent_workers 1.0" in started.metrics.exposition()  # of those that run
        coordinator.publish(world(2))
        new = await workers(tmp_path, 2, 2)
        assert new[1]["pid"] == old[1]["pid"]
        assert new[0]["pid"] != old[0]["pid"]
        assert len(coordinator.received["/v1/exits"]) == 1
        assert b"worker_restarts_total 1.0" in started.metrics.exposition()


async def test_a_worker_that_does_not_join_the_new_world_is_killed_and_replaced_in_it(tmp_path, coordinator):
    program = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pause()"
    async with Started(coordinator.url, tmp_path, program, join_timeout=0.3) as started:
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        os.kill(old[1]["pid"], 19)  # SIGSTOP
        coordinator.publish(world(2))
        await workers(tmp_path, 2, 2)
        assert not any(is_alive(w["pid"]) for w in old)
        assert not coordinator.received["/v1/exits"]
        assert b"worker_restarts_total 2.0" in started.metrics.exposition()


async def test_running_workers_write_their_stacks_before_they_leave_a_world_that_hung(tmp_path, coordinator):
    wrote = tmp_path / "stacks"
    program = f"signal.signal(signal.SIGUSR1, lambda *_: open({str(wrote)!r}, 'a').write('x'))\nwhile True: take()"
    async with Started(coordinator.url, tmp_path, program):
        coordinator.publish(world(1))
        await workers(tmp_path, 1, 2)
        coordinator.publish(world(2))
        await workers(tmp_path, 2, 2)
        assert not wrote.exists()
        coordinator.lose(2, stacks=True)
        await workers_out(coordinator, 2)
        assert wrote.read_text() == "xx"


def descriptors():
    """What this process has open of its workers, by kind."""
    kinds = ("pidfd", "memfd:coxswain-fault", "socket:")
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return {kind: sum(kind in link for link in links) for kind in kinds}


async def test_an_agent_that_is_ended_while_it_stops_a_worker_closes_what_it_has_of_it(tmp_path, coordinator):
    asked, before = tmp_path / "asked", descriptors()
    program = (
        f"signal.signal(signal.SIGTERM, lambda *_: open({str(asked)!r}, 'a').write('x'))\nwhile True: signal.pause()"
    )
    async with Started(coordinator.url, tmp_path, program, index=1):
        coordinator.publish(world(1))
        await workers(tmp_path, 1, 2)
        coordinator.publish(world(2, ("trainer-0",)))
        await asyncio.to_thread(wait_until, lambda: asked.exists() and len(asked.read_text()) == 2)
    await asyncio.to_thread(wait_until, lambda: descriptors() == before)  # the coordinator closes its end, too
    assert asyncio.all_tasks() == {asyncio.current_task()}, "what listened to a worker goes on"


async def test_workers_without_a_seat_in_the_new_world_end_by_sigterm(tmp_path, coordinator):
    note = (
        f"signal.signal(signal.SIGTERM, lambda *_: open({str(tmp_path / 'asked')!r}, 'a').write('x') and os._exit(0))"
    )
    async with Started(coordinator.url, tmp_path, f"{note}\nwhile True: signal.pause()", index=1) as started:
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        coordinator.publish(world(2, ("trainer-0",)))
        await asyncio.to_thread(wait_until, lambda: not any(is_alive(w["pid"]) for w in old))
        await asyncio.to_thread(wait_until, lambda: b"coxswain_agent_workers 0.0" in started.metrics.exposition())
    assert (tmp_path / "asked").read_text() == "xx"
    assert not coordinator.received["/v1/exits"]


async def restarted(coordinator):
    """What the agent registers as with a coordinator, and with another one at the same address."""
    coordinator.stop()
    first = coordinator.received.pop("/v1/register")[0]
    coordinator.start()
    return first, (await coordinator.seen("/v1/register"))[0]


async def test_the_agent_and_its_workers_outlast_a_restart_of_the_coordinator_and_it_registers_again(
    tmp_path, coordinator
):
    async with Started(coordinator.url, tmp_path, FOREVER):
        coordinator.publish(world(1))
        before = await workers(tmp_path, 1, 2)
        first, again = await restarted(coordinator)
        assert all(is_alive(w["pid"]) for w in before)
    assert (again.instance, again.generation) == (first.instance, 1)


async def test_an_agent_whose_fork_server_ends_before_it_has_imported_what_workers_need_ends_with_the_reason(
    tmp_path, coordinator
):
    """Before, it said that it was starting, without end: a job that waited for it to join was never larger."""
    module = tmp_path / "scripted_worker.py"
    started = Started(coordinator.url, tmp_path, FOREVER)
    module.write_text("raise SystemExit(3)")
    async with started:
        with pytest.raises(Retryable, match="the process that forks the workers ended"):
            await asyncio.wait_for(asyncio.shield(started.running), 20)


async def test_an_agent_says_that_it_is_starting_until_its_fork_server_has_imported_what_workers_need(
    tmp_path, coordinator
):
    gate, module = tmp_path / "imported", tmp_path / "scripted_worker.py"
    started = Started(coordinator.url, tmp_path, FOREVER)
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists():\n    time.sleep(0.01)\n"
    module.write_text(waits + module.read_text())
    async with started:
        assert (await coordinator.seen("/v1/register"))[0].starting is True
        gate.touch()
        assert (await coordinator.seen("/v1/register", 2))[1].starting is msgspec.UNSET


@pytest.mark.timeout(60)
async def test_an_agent_whose_world_waits_longer_than_it_may_for_what_workers_import_ends_with_the_reason(
    tmp_path, coordinator, monkeypatch
):
    """As on a mount that does not answer: its peers waited for it without end, and no pod was replaced."""
    env = agent_fakes.environment(coordinator.url)
    hurried = dataclasses.replace(env, job=replace(env.job, first_step_timeout_seconds=1))
    monkeypatch.setattr(agent_fakes, "environment", lambda *_: hurried)
    started = Started(coordinator.url, tmp_path, FOREVER)
    (tmp_path / "scripted_worker.py").write_text("import signal\nsignal.pause()")
    async with started:
        coordinator.publish(world(1))
        with pytest.raises(
            Retryable, match=r"was not there within 1 s \(spec\.firstStepTimeoutSeconds\); look at what"
        ):
            await asyncio.wait_for(asyncio.shield(started.running), 30)


async def test_an_agent_with_an_ended_worker_registers_as_one_whose_world_is_broken(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER):
        coordinator.publish(world(1))
        os.kill((await workers(tmp_path, 1, 2))[0]["pid"], 9)
        await coordinator.seen("/v1/exits")
        again = (await restarted(coordinator))[1]
        assert (again.generation, again.left) == (1, 1)


async def test_the_agent_ends_with_its_workers_when_the_coordinator_stays_away(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER, give_up=2.0) as started:
        coordinator.publish(world(1))
        pids = [w["pid"] for w in await workers(tmp_path, 1, 2)]
        coordinator.stop()
        with pytest.raises(Retryable, match="/v1/register"):
            await asyncio.wait_for(started.running, 30)
        assert not any(is_alive(pid) for pid in pids)


async def test_a_trainer_without_a_seat_runs_no_worker(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER):
        coordinator.publish(world(1, ("trainer-7",)))
        registered = coordinator.received["/v1/register"]
        await asyncio.to_thread(coordinator.wait_until, lambda: any(r.generation == 1 for r in registered))
        coordinator.publish(world(2))
        await workers(tmp_path, 2, 2)
    assert not list(tmp_path.glob("1-*"))
