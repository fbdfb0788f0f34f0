"""The agent runs one worker a seat in each world, and reports how workers end."""

import asyncio
import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from coxswain.api.validate import check
from coxswain.errors import Refused, Retryable
from coxswain.live import Held
from coxswain.wire import Fault
from coxswain_train.agent.devices import (
    fork_server_environment,
    trainer_devices,
    visible_devices,
    worker_environment,
)
from coxswain_train.agent.processes import ForkServer, WorkerHandle
from coxswain_train.worker.assignments import Assignment, Leaving, Left
from tests.fake_coordinator import FakeCoordinator
from tests.unit import agent_fakes
from tests.unit.agent_fakes import TOKEN, Started, environment, world

FOREVER = "signal.pause()"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def coordinator():
    with FakeCoordinator(TOKEN) as coordinator:
        yield coordinator


async def workers(folder, generation, count):
    """The environments of the workers of one generation, once all have started."""
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


async def test_every_seat_of_a_trainer_gets_a_worker_with_its_rank_and_device(tmp_path, coordinator, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.setattr(agent_fakes, "environment", lambda url, index: on("h100-80g", index, url))
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
        coordinator.publish(world(2))
        new = await workers(tmp_path, 2, 2)
        assert new[1]["pid"] == old[1]["pid"]
        assert new[0]["pid"] != old[0]["pid"]
        assert len(coordinator.received["/v1/exits"]) == 1
        assert b"worker_restarts_total 1.0" in started.metrics.exposition()


async def test_a_worker_that_does_not_join_the_new_world_is_killed_and_replaced_in_it(tmp_path, coordinator):
    program = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pause()"
    async with Started(coordinator.url, tmp_path, program, join_timeout=0.3):
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        os.kill(old[1]["pid"], 19)  # SIGSTOP
        coordinator.publish(world(2))
        await workers(tmp_path, 2, 2)
        assert not any(is_alive(w["pid"]) for w in old)
        assert not coordinator.received["/v1/exits"]


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


async def workers_out(coordinator, generation):
    """What an agent registers as once its workers have left this world."""

    def out():
        return [r for r in coordinator.received["/v1/register"] if r.left == generation]

    await asyncio.to_thread(coordinator.wait_until, out)
    assert out()[0].generation == 0
    return out()[0]


async def test_workers_leave_a_world_that_is_lost_say_what_they_hold_and_join_the_next(tmp_path, coordinator):
    mine = [{"device": 9, "generation": 1, "rank": 3, "step": 7, "pending": "Agreed", "copies": [2]}]
    async with Started(coordinator.url, tmp_path, f"global HELD\nHELD = {mine}\nwhile True: take()"):
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        coordinator.lose(1)
        out = await workers_out(coordinator, 1)
        assert out.held == tuple(Held(device, 1, 3, 7, "Agreed", (2,)) for device in range(2))
        coordinator.publish(world(2))
        assert [w["pid"] for w in await workers(tmp_path, 2, 2)] == [w["pid"] for w in old]


async def test_a_worker_that_does_not_leave_a_lost_world_is_killed_and_holds_nothing(tmp_path, coordinator):
    async with Started(
        coordinator.url, tmp_path, "while True: take()", join_timeout=3.0
    ):  # the other one leaves within that
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        os.kill(old[0]["pid"], 19)  # SIGSTOP
        coordinator.lose(1)
        await workers_out(coordinator, 1)
        assert [is_alive(w["pid"]) for w in old] == [False, True]


ANSWERS = """
channel = socket.socket(fileno=os.dup(int(os.environ["COXSWAIN_ORDERS"])))
generation = json.loads(channel.recv(4096))["generation"]
channel.send(json.dumps({"type": "Leaving", "generation": generation}).encode())
"""


async def test_a_worker_that_answers_while_it_computes_has_longer_to_leave_and_keeps_what_it_holds(
    tmp_path, coordinator
):
    say = '{"type": "Left", "generation": 1, "held": [{"device": 0, "generation": 1, "rank": 0, "step": 7}]}'
    program = f"{ANSWERS}\nimport time\ntime.sleep(2.0)\nchannel.send({say!r}.encode())\nwhile True: take()"
    async with Started(coordinator.url, tmp_path, program, join_timeout=0.5):
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        coordinator.lose(1)
        assert [held.step for held in (await workers_out(coordinator, 1)).held] == [7, 7]
        assert all(is_alive(w["pid"]) for w in old)


async def test_a_worker_that_answers_and_stays_in_a_world_that_hung_is_killed_as_one_that_does_not_answer(
    tmp_path, coordinator
):
    program = f"signal.signal(signal.SIGUSR1, lambda *_: None)\n{ANSWERS}\nwhile True: signal.pause()"
    async with Started(coordinator.url, tmp_path, program, join_timeout=0.5):
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        coordinator.lose(1, stacks=True)
        await workers_out(coordinator, 1)
        assert not any(is_alive(w["pid"]) for w in old)


async def test_a_worker_that_has_lost_its_peers_is_reported_at_once(tmp_path, coordinator):
    say = '{"type": "Left", "generation": 1, "held": [], "why": "Connection closed by peer"}'
    program = (
        f"socket.socket(fileno=os.dup(int(os.environ['COXSWAIN_ORDERS']))).send({say!r}.encode())\nwhile True: take()"
    )
    async with Started(coordinator.url, tmp_path, program):
        coordinator.publish(world(1))
        registered = coordinator.received["/v1/register"]
        await asyncio.to_thread(coordinator.wait_until, lambda: any(r.broken for r in registered))
        assert next((r.left, r.broken) for r in registered if r.broken) == (1, "Connection closed by peer")


@asynccontextmanager
async def handled() -> AsyncIterator[tuple[WorkerHandle, list[bool], socket.socket]]:
    """A handle, how often it has notified of a worker that left, and the worker's end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    worker = WorkerHandle(0, -1, -1, ours, asyncio.get_running_loop().create_future())
    news = list[bool]()
    listener = asyncio.create_task(worker.listen(lambda: news.append(True)))
    with ours, theirs:
        yield worker, news, theirs
        listener.cancel()
        await asyncio.wait([listener])


def say(theirs: socket.socket, *messages: Assignment | Leaving | Left) -> None:
    for message in messages:
        theirs.send(msgspec.json.encode(message))


async def test_what_a_worker_says_of_a_former_world_does_not_take_it_out_of_the_present_one():
    seat = world(1).seats[0]
    async with handled() as (worker, news, theirs):
        worker.assign(1, seat)
        say(theirs, Assignment(1, 0))
        assert await worker.wait_joined(30)
        worker.assign(2, seat)
        say(theirs, Left(1, (), "Connection closed by peer"), Assignment(2, 0))
        assert await worker.wait_joined(30)
        assert worker.left is None and not news
        say(theirs, Left(2, ()))
        assert await worker.wait_left(30)
        assert worker.left == Left(2, ()) and news


@pytest.mark.parametrize(("answers", "leaves"), [((Leaving(2),), True), ((Leaving(1),), False), ((), False)])
async def test_only_a_worker_that_answers_from_the_world_that_it_is_to_leave_has_longer_for_it(answers, leaves):
    seat = world(1).seats[0]
    async with handled() as (worker, _, theirs):
        worker.assign(1, seat)
        worker.assign(2, seat)
        say(theirs, *answers, Assignment(2, 0))
        assert await worker.wait_joined(30)
        waiting = asyncio.create_task(worker.wait_left(0.0, 3600))
        if leaves:
            assert not (await asyncio.wait([waiting], timeout=0.05))[0]
            say(theirs, Left(2, ()))
        async with asyncio.timeout(30):
            assert await waiting == leaves


async def test_a_worker_that_has_begun_in_no_world_yet_can_leave_the_one_that_it_is_sent_into():
    async with handled() as (worker, news, theirs):
        worker.assign(3, world(3).seats[0])
        say(theirs, Left(0, ()))
        assert await worker.wait_left(30) and news


async def test_an_agent_that_is_ended_while_it_stops_a_worker_closes_what_it_has_of_it(tmp_path, coordinator):
    program = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pause()"
    async with Started(coordinator.url, tmp_path, program, index=1) as started:
        coordinator.publish(world(1))
        await workers(tmp_path, 1, 2)
        handles = list(started.agent._workers)
        coordinator.publish(world(2, ("trainer-0",)))
        async with asyncio.timeout(30):
            while started.agent._workers:  # noqa: ASYNC110  until both are being stopped
                await asyncio.sleep(0.01)
    assert [worker.channel.fileno() for worker in handles] == [-1, -1]
    assert all(worker.listener.done() for worker in handles)


async def test_workers_without_a_seat_in_the_new_world_end(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER, index=1) as started:
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        coordinator.publish(world(2, ("trainer-0",)))
        await asyncio.to_thread(wait_until, lambda: not any(is_alive(w["pid"]) for w in old))
        await asyncio.to_thread(wait_until, lambda: b"coxswain_agent_workers 0.0" in started.metrics.exposition())


async def test_a_fork_server_that_is_killed_is_replaced_with_its_workers(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER):
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        os.kill(old[0]["ppid"], 9)
        exits = await coordinator.seen("/v1/exits", 2)
        assert {e.exit_code for e in exits} == {-9}
        coordinator.publish(world(2))
        new = await workers(tmp_path, 2, 2)
        assert {w["pid"] for w in new}.isdisjoint({w["pid"] for w in old})


async def test_an_agent_whose_workers_cannot_be_imported_ends_with_the_way_to_the_reason(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, "this is no Python") as started:
        coordinator.publish(world(1))
        with pytest.raises(Retryable, match="the process that forks the workers ended; its log says why"):
            await asyncio.wait_for(started.running, 30)


async def test_a_request_to_a_fork_server_that_has_just_ended_fails_at_once(tmp_path):
    """The process has ended, and the event loop has not run since."""
    (tmp_path / "pid").touch()
    script = f"import os, signal; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); signal.pause()"
    server = ForkServer((sys.executable, "-c", script), os.environ)
    await server.warm()
    wait_until((tmp_path / "pid").read_text)
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 9)
    wait_until(lambda: not is_alive(pid))
    try:
        with pytest.raises(Retryable, match="the process that forks the workers ended"):
            await asyncio.wait_for(server.fork(0, {}), 10)
    finally:
        await server.end()


async def test_an_exit_is_reported_with_the_fault_that_the_worker_wrote(tmp_path, coordinator):
    fault = '{"reason": "NaN", "message": "loss"}'
    program = f"pathlib.Path(os.environ['COXSWAIN_TERMINATION_LOG']).write_text({fault!r}); os._exit(2)"
    async with Started(coordinator.url, tmp_path, program):
        coordinator.publish(world(1, ("trainer-0",)))
        exits = await coordinator.seen("/v1/exits", 2)
    assert {(e.rank, e.device) for e in exits} == {(0, 0), (1, 1)}
    assert {(e.trainer, e.generation, e.exit_code, e.fault) for e in exits} == {
        ("trainer-0", 1, 2, Fault("NaN", "loss"))
    }


async def test_a_killed_worker_is_reported_with_its_signal(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER):
        coordinator.publish(world(1))
        os.kill((await workers(tmp_path, 1, 2))[0]["pid"], 9)
        [exit_] = await coordinator.seen("/v1/exits")
    assert (exit_.exit_code, exit_.fault) == (-9, None)


async def test_a_worker_that_the_kernel_kills_for_its_memory_is_reported_as_such_and_its_trainer_leaves(
    tmp_path, coordinator
):
    async with Started(coordinator.url, tmp_path, FOREVER) as started:
        coordinator.publish(world(1))
        victim = (await workers(tmp_path, 1, 2))[0]
        started.oom_kills += 1
        os.kill(victim["pid"], 9)
        [exit_] = await coordinator.seen("/v1/exits")
        coordinator.lose(1)
        assert await asyncio.wait_for(started.running, 30) == 1
    assert (exit_.rank, exit_.exit_code, exit_.fault.reason) == (0, -9, "OOMKilled")
    assert faults_with_a_raised_limit(exit_.fault.message) == []


def faults_with_a_raised_limit(message):
    """Of the example for Kubernetes, once the limit is raised where the message says."""
    objects = yaml.safe_load_all((ROOT / "examples/kubernetes.yaml").read_text())
    job = next(o for o in objects if o["kind"] == "TrainingJob")
    field, container, place = re.search(r"raise (\S+) of container (\S+) in (\S+),", message).groups()
    (own,) = [c for c in valued(job, place.split(".")) if c["name"] == container]
    *path, last = field.split(".")
    assert valued(own, path)[last] == "2Gi"
    valued(own, path)[last] = "4Gi"
    return check(job)


def valued(value, path):
    for name in path:
        value = value[name]
    return value


async def test_a_kill_is_not_blamed_on_memory_when_the_kernel_counts_no_new_one(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER, oom_kills=3):
        coordinator.publish(world(1))
        os.kill((await workers(tmp_path, 1, 2))[0]["pid"], 9)
        [exit_] = await coordinator.seen("/v1/exits")
    assert (exit_.exit_code, exit_.fault) == (-9, None)


async def test_after_a_good_end_the_agent_waits_for_its_workers_and_leaves_with_the_jobs_code(tmp_path, coordinator):
    async with Started(
        coordinator.url, tmp_path, f"import time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)"
    ) as started:
        coordinator.publish(world(1))
        pids = [w["pid"] for w in await workers(tmp_path, 1, 2)]
        coordinator.finish(3)
        assert not (await asyncio.wait([started.running], timeout=0.3))[0]
        (tmp_path / "go").touch()
        assert await asyncio.wait_for(started.running, 30) == 3
        assert not any(is_alive(pid) for pid in pids)
    assert len(coordinator.received["/v1/exits"]) == 2


async def test_after_a_failure_the_agent_does_not_wait_for_its_workers(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER) as started:
        coordinator.publish(world(1))
        await workers(tmp_path, 1, 2)
        coordinator.finish(2)
        assert await asyncio.wait_for(started.running, 15) == 2


async def test_an_exit_from_a_world_that_is_over_is_still_reported(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER) as started:
        coordinator.publish(world(1))
        pid = (await workers(tmp_path, 1, 2))[0]["pid"]
        coordinator.generation = 2
        os.kill(pid, 9)
        assert (await coordinator.seen("/v1/exits"))[0].generation == 1
        assert not started.running.done()


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


async def test_an_agent_with_an_ended_worker_registers_as_one_whose_world_is_broken(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER):
        coordinator.publish(world(1))
        os.kill((await workers(tmp_path, 1, 2))[0]["pid"], 9)
        await coordinator.seen("/v1/exits")
        again = (await restarted(coordinator))[1]
        assert (again.generation, again.left) == (1, 1)


async def test_the_agent_ends_with_its_workers_when_the_coordinator_stays_away(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER, give_up=0.5) as started:
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


def test_workers_run_one_cpu_thread_each_unless_the_environment_says_otherwise():
    assert fork_server_environment({}, ())["OMP_NUM_THREADS"] == "1"
    assert fork_server_environment({"OMP_NUM_THREADS": "4"}, ())["OMP_NUM_THREADS"] == "4"
    assert fork_server_environment({}, ("0",)) == {}


STEPS = """
import resource
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [b"x" * (16 << 20) for _ in range(4)]
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_a_worker_on_cpus_takes_again_what_it_freed_in_the_step_before():
    environment = fork_server_environment(os.environ, ())
    done = subprocess.run([sys.executable, "-c", STEPS], env=environment, capture_output=True, timeout=60, check=True)
    assert int(done.stdout.split()[-1]) < 100  # page faults, of 16,384 pages


def test_a_container_says_itself_when_its_workers_give_memory_back():
    own = {"MALLOC_TRIM_THRESHOLD_": "131072"}
    assert fork_server_environment(own, ()).items() >= own.items()
    assert "MALLOC_TRIM_THRESHOLD_" not in fork_server_environment({}, ("0",))


def on(hardware, index=0, url=""):
    env = environment(url, index)
    return dataclasses.replace(env, job=replace(env.job, parallelism=replace(env.job.parallelism, hardware=hardware)))


@pytest.mark.parametrize(
    "devices, index, expected", [(("0", "1"), 1, "1"), (("0", "1", "2", "3"), 1, "3"), (("GPU-a", "GPU-b"), 0, "GPU-b")]
)
def test_a_worker_sees_one_cuda_device(devices, index, expected):
    assert worker_environment(on("h100-80g", index), 1, devices)["CUDA_VISIBLE_DEVICES"] == expected


def test_a_worker_of_a_job_on_cpus_sees_no_cuda_device_also_where_there_are_some(tmp_path):
    (tmp_path / "nvidia0").touch()
    env = on("cpu")
    assert trainer_devices(env.job, {}, tmp_path) == ()
    assert worker_environment(env, 1, ("0",)) == worker_environment(env, 1, ()) == {"CUDA_VISIBLE_DEVICES": ""}


def test_a_trainer_that_sees_fewer_devices_than_it_has_workers_is_refused_and_shares_none(tmp_path):
    job = on("h100-80g").job
    assert job.devices_per_trainer == 2
    assert trainer_devices(job, {"CUDA_VISIBLE_DEVICES": "3,5"}) == ("3", "5")
    assert trainer_devices(job, {}, tmp_path) == ()  # the worker refuses, if torch finds none either
    with pytest.raises(Refused) as refused:
        trainer_devices(job, {"CUDA_VISIBLE_DEVICES": "3"})
    assert refused.value.reason == "TooFewDevices"
    assert refused.value.message == (
        "spec.trainers.devicesPerTrainer: 2, and the trainer sees 1 CUDA devices (3); lower devicesPerTrainer, "
        "or give the trainer as many devices"
    )


def test_cuda_devices_are_found_without_cuda(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert visible_devices({}, tmp_path) == ("0", "1")
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "3, 5"}, tmp_path) == ("3", "5")
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()


def test_the_agent_never_imports_torch():
    check = "import sys, coxswain_train.agent, coxswain_train.agent.forkserver; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60).returncode == 0
