"""The agent keeps one worker a seat alive in each world, and says how workers end."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coxswain.errors import Retryable
from coxswain.wire import Fault
from coxswain_train.agent import agent
from coxswain_train.agent.devices import fork_server_environment, visible_devices, worker_environment
from tests.unit.agent_fakes import Coordinator, Started, environment, world

FOREVER = "signal.pause()"


@pytest.fixture
async def coordinator():
    coordinator = Coordinator()
    coordinator.url = await coordinator.start()
    yield coordinator
    await coordinator.stop()


async def workers(folder, generation, count):
    """What the workers of one generation saw, once all have started."""
    async with asyncio.timeout(30):
        while len(found := sorted(folder.glob(f"{generation}-*.json"))) < count:  # noqa: ASYNC110  another process
            await asyncio.sleep(0.02)
    return [json.loads(path.read_text()) for path in found]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


async def test_every_seat_of_the_trainer_gets_a_worker_that_knows_its_place(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER, index=1):
        coordinator.publish(world(1))
        seen = await workers(tmp_path, 1, 2)
    assert [w["COXSWAIN_DEVICE"] for w in seen] == ["0", "1"]
    assert {path.name for path in tmp_path.glob("*.json")} == {"1-2.json", "1-3.json"}
    assert coordinator.registered[0].devices == 2


async def test_living_workers_go_to_the_new_world_and_only_the_dead_one_is_replaced(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, "while True: take()") as started:
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        os.kill(old[0]["pid"], 9)
        await asyncio.wait_for(coordinator.exits.get(), 30)
        coordinator.publish(world(2))
        new = await workers(tmp_path, 2, 2)
        assert new[1]["pid"] == old[1]["pid"]
        assert new[0]["pid"] != old[0]["pid"]
        assert coordinator.exits.empty()
        assert b"worker_restarts_total 1.0" in started.metrics.exposition()


async def test_a_worker_that_does_not_leave_its_world_is_killed_and_replaced_without_losing_the_new_one(
    tmp_path, coordinator, monkeypatch
):
    monkeypatch.setattr(agent, "JOIN_TIMEOUT", 0.3)
    async with Started(coordinator.url, tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pause()"):
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        os.kill(old[1]["pid"], 19)  # SIGSTOP
        coordinator.publish(world(2))
        await workers(tmp_path, 2, 2)
        assert not any(is_alive(w["pid"]) for w in old)
        assert coordinator.exits.empty()


async def test_workers_without_a_seat_in_the_new_world_end(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER, index=1) as started:
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        coordinator.publish(world(2, ("trainer-0",)))
        await asyncio.to_thread(wait_until, lambda: b"coxswain_agent_workers 0.0" in started.metrics.exposition())
        assert not any(is_alive(w["pid"]) for w in old)


async def test_a_mold_that_dies_is_replaced_with_its_workers(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER) as started:
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        os.kill(started.agent._fork_server._process.pid, 9)
        exits = [await asyncio.wait_for(coordinator.exits.get(), 30) for _ in range(2)]
        assert {e.exit_code for e in exits} == {-9}
        coordinator.publish(world(2))
        new = await workers(tmp_path, 2, 2)
        assert {w["pid"] for w in new}.isdisjoint({w["pid"] for w in old})


async def test_an_exit_is_reported_with_the_workers_last_words(tmp_path, coordinator):
    fault = '{"reason": "NaN", "message": "loss"}'
    program = f"pathlib.Path(os.environ['COXSWAIN_TERMINATION_LOG']).write_text({fault!r}); os._exit(2)"
    async with Started(coordinator.url, tmp_path, program):
        coordinator.publish(world(1, ("trainer-0",)))
        exits = [await asyncio.wait_for(coordinator.exits.get(), 30) for _ in range(2)]
    assert {(e.rank, e.device) for e in exits} == {(0, 0), (1, 1)}
    assert {(e.trainer, e.generation, e.exit_code, e.fault) for e in exits} == {
        ("trainer-0", 1, 2, Fault("NaN", "loss"))
    }


async def test_a_killed_worker_is_reported_with_its_signal(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER):
        coordinator.publish(world(1))
        os.kill((await workers(tmp_path, 1, 2))[0]["pid"], 9)
        exit_ = await asyncio.wait_for(coordinator.exits.get(), 30)
    assert (exit_.exit_code, exit_.fault) == (-9, None)


async def test_a_worker_killed_for_its_memory_is_named_and_its_trainer_leaves(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER) as started:
        coordinator.publish(world(1))
        victim = (await workers(tmp_path, 1, 2))[0]
        started.oom_kills += 1
        os.kill(victim["pid"], 9)
        exit_ = await asyncio.wait_for(coordinator.exits.get(), 30)
        coordinator.publish(world(2))
        assert await asyncio.wait_for(started.life, 30) == 1
    assert (exit_.rank, exit_.exit_code, exit_.fault.reason) == (0, -9, "OOMKilled")
    assert "raise trainers.template.resources.limits.memory" in exit_.fault.message


async def test_a_worker_killed_by_a_person_does_not_blame_memory_that_was_short_long_ago(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER, oom_kills=3):
        coordinator.publish(world(1))
        os.kill((await workers(tmp_path, 1, 2))[0]["pid"], 9)
        exit_ = await asyncio.wait_for(coordinator.exits.get(), 30)
    assert (exit_.exit_code, exit_.fault) == (-9, None)


async def test_at_the_end_it_waits_for_its_workers_and_leaves_with_the_jobs_code(tmp_path, coordinator):
    async with Started(
        coordinator.url, tmp_path, f"import time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)"
    ) as started:
        coordinator.publish(world(1))
        pids = [w["pid"] for w in await workers(tmp_path, 1, 2)]
        coordinator.finish(3)
        assert not (await asyncio.wait([started.life], timeout=0.3))[0]
        (tmp_path / "go").touch()
        assert await asyncio.wait_for(started.life, 30) == 3
        assert not any(is_alive(pid) for pid in pids)
    assert coordinator.exits.qsize() == 2


async def test_a_failed_job_leaves_its_workers_no_time(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER) as started:
        coordinator.publish(world(1))
        await workers(tmp_path, 1, 2)
        coordinator.finish(2)
        assert await asyncio.wait_for(started.life, 15) == 2


async def test_an_exit_of_a_world_that_is_over_is_still_told(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER) as started:
        coordinator.publish(world(1))
        pid = (await workers(tmp_path, 1, 2))[0]["pid"]
        coordinator.generation = 2
        os.kill(pid, 9)
        assert (await asyncio.wait_for(coordinator.exits.get(), 30)).generation == 1
        assert not started.life.done()


async def test_it_survives_a_coordinator_that_is_away_and_registers_again(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER):
        coordinator.publish(world(1))
        before = await workers(tmp_path, 1, 2)
        await coordinator.stop()
        again = Coordinator()
        again.port, again.worlds = coordinator.port, [world(1)]
        await again.start()
        await asyncio.wait_for(again.met.wait(), 30)
        assert all(is_alive(w["pid"]) for w in before)
        assert again.registered[0].instance == coordinator.registered[0].instance
        await again.stop()


async def test_it_gives_up_when_the_coordinator_stays_away(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER, give_up=0.5) as started:
        coordinator.publish(world(1))
        pids = [w["pid"] for w in await workers(tmp_path, 1, 2)]
        await coordinator.stop()
        with pytest.raises(Retryable, match="/v1/register"):
            await asyncio.wait_for(started.life, 30)
        assert not any(is_alive(pid) for pid in pids)


async def test_a_trainer_without_a_seat_runs_no_worker(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER):
        coordinator.publish(world(1, ("trainer-7",)))
        coordinator.publish(world(2))
        await workers(tmp_path, 2, 2)
    assert not list(tmp_path.glob("1-*"))


def test_workers_share_cpu_cores_by_one_thread_each_unless_told_otherwise():
    assert fork_server_environment({}, ())["OMP_NUM_THREADS"] == "1"
    assert fork_server_environment({"OMP_NUM_THREADS": "4"}, ())["OMP_NUM_THREADS"] == "4"
    assert fork_server_environment({}, ("0",)) == {}


@pytest.mark.parametrize(
    "devices, index, expected", [(("0", "1"), 1, "1"), (("0", "1", "2", "3"), 1, "3"), (("GPU-a",), 0, "GPU-a")]
)
def test_a_worker_sees_one_cuda_device(devices, index, expected):
    assert worker_environment(environment(index=index), 1, devices)["CUDA_VISIBLE_DEVICES"] == expected


def test_cuda_devices_are_found_without_cuda(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert visible_devices({}, tmp_path) == ("0", "1")
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "3, 5"}, tmp_path) == ("3", "5")
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()


def test_the_agent_never_imports_torch():
    check = "import sys, coxswain_train.agent, coxswain_train.agent.forkserver; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60).returncode == 0
