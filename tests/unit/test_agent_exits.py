"""The agent reports how workers end, and ends with the job's code."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest
import yaml

from coxswain.api.validate import check
from coxswain.errors import Retryable
from coxswain.wire import Fault
from coxswain_train.agent.processes import ForkServer, ForkServerEnded, Unkillable, WorkerHandle
from tests.fake_coordinator import FakeCoordinator
from tests.unit.agent_fakes import FOREVER, TOKEN, Started, fork_server, is_alive, wait_until, workers, world

ROOT = Path(__file__).parents[2]


@pytest.fixture
def coordinator():
    with FakeCoordinator(TOKEN) as coordinator:
        yield coordinator


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


NOTES = """
import json, os, pathlib, signal
def work():
    note = pathlib.Path(FOLDER, os.environ["N"] + ".json")
    note.with_suffix(".new").write_text(json.dumps({"pid": os.getpid(), "ppid": os.getppid()}))
    note.with_suffix(".new").rename(note)
    signal.pause()
"""


class Forks:
    """A fork server without an agent. Each of its workers notes its process under its name."""

    def __init__(self, folder, head="", **limits):
        (folder / "notes.py").write_text(head + NOTES.replace("FOLDER", repr(str(folder))))
        self.folder, self.made = folder, []
        self.server = ForkServer(fork_server(folder, "notes"), os.environ, **limits)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.server.end()
        for worker in self.made:
            await worker.close()

    async def fork(self, name):
        self.made.append(await self.server.fork(0, {"N": name}))
        return self.made[-1]

    async def noted(self, name):
        """The process of this worker, once it runs, and the one that has forked it."""
        note = self.folder / f"{name}.json"
        await asyncio.to_thread(wait_until, note.exists)
        return json.loads(note.read_text())


REFUSES = """import os
calls, forks = [], {name}
def refuse(*args):
    calls.append(args)
    if len(calls) == 3:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return forks(*args)
{name} = refuse
"""


@pytest.mark.parametrize("name", ["os.fork", "os.pidfd_open"])
async def test_a_fork_that_the_system_refuses_fails_alone_and_ends_no_worker_that_runs(tmp_path, name):
    """As where a pod has as many processes as it may. Before, the probe of a device on standby ended all workers so."""
    async with Forks(tmp_path, REFUSES.format(name=name)) as forks:
        before = [await forks.fork("a"), await forks.fork("b")]
        with pytest.raises(Retryable, match=r"no process can be forked: .*Resource temporarily unavailable"):
            await asyncio.wait_for(forks.fork("c"), 20)
        third = await forks.fork("d")
        noted = [await forks.noted(worker) for worker in "abd"]
        assert all(is_alive(worker["pid"]) for worker in noted)
        assert all(worker.is_running for worker in (*before, third))


def pidfds():
    """How many this process has open."""
    return sum("pidfd" in str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())


async def test_a_caller_that_is_cancelled_as_the_answer_comes_leaves_no_handle_of_the_process(tmp_path):
    """Behind each number of turns of the event loop once the answer is there."""
    async with Forks(tmp_path) as forks:
        await forks.fork("first")
        before, cancelled = pidfds(), []
        for turns in range(8):
            caller, other = (asyncio.create_task(forks.fork(f"{name}-{turns}")) for name in ("cancelled", "other"))
            await asyncio.sleep(0)  # both have asked
            wait_until((tmp_path / f"other-{turns}.json").exists)  # so the first answer has come
            for _ in range(turns):
                await asyncio.sleep(0)
            caller.cancel()
            await other
            await asyncio.wait({caller})
            cancelled.append(caller.cancelled())
            assert pidfds() == before + len(forks.made) - 1
        assert cancelled == sorted(cancelled, reverse=True) and set(cancelled) == {True, False}


async def test_a_caller_that_is_cancelled_before_the_answer_leaves_no_handle_of_the_process_and_takes_no_others(
    tmp_path,
):
    async with Forks(tmp_path) as forks:
        await forks.fork("first")
        server, before = (await forks.noted("first"))["ppid"], pidfds()
        os.kill(server, signal.SIGSTOP)
        caller, next_one = (asyncio.create_task(forks.fork(name)) for name in ("cancelled", "next"))
        await asyncio.sleep(0)  # both have asked
        caller.cancel()
        os.kill(server, signal.SIGCONT)
        worker = await asyncio.wait_for(next_one, 20)
        assert caller.cancelled() and pidfds() == before + 1
        await forks.noted("cancelled")  # it was asked for
        os.kill((await forks.noted("next"))["pid"], 9)
        assert (
            await asyncio.wait_for(asyncio.shield(worker.ended), 20) == -9
        )  # the end of this process, not of the other


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
        with pytest.raises(Retryable, match=r"the process that forks the workers was killed by signal 9 \(Killed\)"):
            await asyncio.wait_for(server.fork(0, {}), 30)
    finally:
        await server.end()


async def test_the_end_of_a_worker_is_known_although_what_waited_for_it_was_cancelled():
    """As where an agent that ends a probe is ended itself: the fork server's word that the process has ended comes later."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import signal; signal.pause()")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ended = asyncio.get_running_loop().create_future()
        worker = WorkerHandle(0, os.pidfd_open(process.pid), os.memfd_create("fault"), ours, ended)
        waiting = asyncio.create_task(worker.kill())
        await asyncio.wait_for(process.wait(), 30)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert worker.is_running and not ended.cancelled()
        ended.set_result(-9)
        await worker.close()


async def test_a_process_that_sigkill_does_not_end_is_named_by_its_device_and_not_waited_for_for_ever():
    """As one that waits in the driver of a broken device, or whose end a fork server that hangs does not report."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ended = asyncio.get_running_loop().create_future()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import signal; signal.pause()")
        worker = WorkerHandle(3, os.pidfd_open(process.pid), os.memfd_create("fault"), ours, ended, patience=0.05)
        try:
            with pytest.raises(Unkillable, match=r"the process on device 3 has not ended 0.05 s after SIGKILL"):
                await asyncio.wait_for(worker.kill(), 20)
            assert worker.is_running and not ended.cancelled()
        finally:
            await process.wait()
            await worker.close()


async def test_a_fork_server_that_hangs_is_ended_with_its_workers(tmp_path):
    async with Forks(tmp_path, patience=0.05) as forks:
        await forks.fork("before")
        before = await forks.noted("before")
        os.kill(before["ppid"], signal.SIGSTOP)
        with pytest.raises(ForkServerEnded, match="was killed by signal 9"):
            await asyncio.wait_for(forks.fork("next"), 20)
        await asyncio.to_thread(wait_until, lambda: not is_alive(before["pid"]))


async def test_a_fork_server_that_still_imports_what_workers_need_is_waited_for():
    """A slow disk takes minutes for torch: that is no hang."""
    server = ForkServer((sys.executable, "-c", "import signal; signal.pause()"), os.environ, patience=0.05)
    forking = asyncio.create_task(server.fork(0, {}))
    done, _ = await asyncio.wait({forking}, timeout=0.5)
    assert not done, "a fork server that is killed would fail the request"
    await server.end()
    with pytest.raises(ForkServerEnded):
        await asyncio.wait_for(forking, 20)


@pytest.fixture
def impatient(monkeypatch):
    """Workers have a twentieth of a second to end."""
    plain = ForkServer.fork

    async def fork(*request):
        worker = await plain(*request)
        worker.patience = 0.05
        return worker

    monkeypatch.setattr(ForkServer, "fork", fork)


async def test_an_agent_with_a_worker_that_cannot_be_killed_ends_with_all_its_processes(
    tmp_path, coordinator, impatient
):
    """Else nothing would hear of it: it would wait, answer each probe and register no more."""
    async with Started(coordinator.url, tmp_path, FOREVER) as started:
        coordinator.publish(world(1))
        before = await workers(tmp_path, 1, 2)
        os.kill(before[0]["ppid"], signal.SIGSTOP)  # no end of a worker is reported
        coordinator.publish(world(2, ("trainer-1", "trainer-2")))
        with pytest.raises(Unkillable, match=r"on device [01] has not ended"):
            await asyncio.wait_for(asyncio.shield(started.running), 30)
        assert not any(is_alive(pid) for worker in before for pid in (worker["pid"], worker["ppid"]))


async def test_an_agent_that_is_ended_beside_a_worker_that_cannot_be_killed_leaves_no_process(
    tmp_path, coordinator, impatient
):
    async with Started(coordinator.url, tmp_path, FOREVER) as started:
        coordinator.publish(world(1))
        before = await workers(tmp_path, 1, 2)
        os.kill(before[0]["ppid"], signal.SIGSTOP)
        started.running.cancel()
        await asyncio.wait_for(asyncio.wait({started.running}), 30)
        assert not any(is_alive(pid) for worker in before for pid in (worker["pid"], worker["ppid"]))


async def test_what_is_open_of_a_worker_is_closed_although_what_closes_it_is_cancelled():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with ours, theirs:
        before = pidfds()
        ended = asyncio.get_running_loop().create_future()
        worker = WorkerHandle(0, os.pidfd_open(os.getpid()), os.memfd_create("fault"), ours, ended)
        worker.listener = asyncio.create_task(worker.listen(lambda: None))
        await asyncio.sleep(0)  # it reads
        closing = asyncio.create_task(worker.close())
        await asyncio.sleep(0)  # it waits for the listener
        closing.cancel()
        await asyncio.wait({closing, worker.listener})
        assert (ours.fileno(), pidfds()) == (-1, before)


def sockets():
    """How many this process has open."""
    return sum("socket" in str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())


async def test_a_fork_server_whose_start_is_cancelled_or_fails_leaves_no_socket(tmp_path):
    before = sockets()
    server = ForkServer((str(tmp_path / "no such program"),), os.environ)
    with pytest.raises(FileNotFoundError):
        await server.warm()
    assert sockets() == before
    server = ForkServer((sys.executable, "-c", "import signal; signal.pause()"), os.environ)
    starting = asyncio.create_task(server.warm())
    await asyncio.sleep(0)  # the process is being started
    starting.cancel()
    await asyncio.wait({starting})
    assert starting.cancelled() and sockets() == before


STAYS = """import subprocess
stays = subprocess.Popen(["sleep", "60"], stdin=0)
open({note!r}, "w").write(str(stays.pid))
"""


async def test_a_worker_has_ended_once_its_fork_server_is_ended_and_a_second_end_changes_nothing(tmp_path):
    """Also where the end of the process is known before that of its channel: another process holds the other end here."""
    note = tmp_path / "stays"
    async with Forks(tmp_path, STAYS.format(note=str(note))) as forks:
        worker = await forks.fork("a")
        try:
            for _ in range(2):
                await forks.server.end()
                assert worker.ended.result() == -9
        finally:
            os.kill(int(note.read_text()), 9)


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
        os.kill((await workers(tmp_path, 1, 2))[1]["pid"], 9)
        [exit_] = await coordinator.seen("/v1/exits")
    assert (exit_.rank, exit_.device, exit_.exit_code, exit_.fault) == (1, 1, -9, None)


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


async def test_a_fork_server_that_is_killed_before_it_is_ready_ends_its_trainer_with_the_signal(tmp_path, coordinator):
    started, module = Started(coordinator.url, tmp_path, FOREVER), tmp_path / "scripted_worker.py"
    module.write_text("import os\nos.kill(os.getpid(), 9)\n")
    async with started:
        with pytest.raises(Retryable, match=r"the process that forks the workers was killed by signal 9 \(Killed\)"):
            await asyncio.wait_for(asyncio.shield(started.running), 20)


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


@pytest.mark.parametrize("code", [0, 3])
async def test_after_a_good_end_the_agent_waits_for_its_workers_and_leaves_with_the_jobs_code(
    tmp_path, coordinator, code
):
    async with Started(
        coordinator.url, tmp_path, f"import time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)"
    ) as started:
        coordinator.publish(world(1))
        pids = [w["pid"] for w in await workers(tmp_path, 1, 2)]
        coordinator.finish(code)
        assert not (await asyncio.wait([started.running], timeout=0.3))[0]
        (tmp_path / "go").touch()
        assert await asyncio.wait_for(started.running, 30) == code
        assert not any(is_alive(pid) for pid in pids)
    assert len(coordinator.received["/v1/exits"]) == 2


async def test_after_a_failure_the_agent_does_not_wait_for_its_workers(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER) as started:
        coordinator.publish(world(1))
        await workers(tmp_path, 1, 2)
        coordinator.finish(2)
        assert await asyncio.wait_for(started.running, 30) == 2


async def test_an_exit_from_a_world_that_is_over_is_still_reported(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, FOREVER) as started:
        coordinator.publish(world(1))
        pid = (await workers(tmp_path, 1, 2))[0]["pid"]
        coordinator.generation = 2
        os.kill(pid, 9)
        assert (await coordinator.seen("/v1/exits"))[0].generation == 1
        assert not started.running.done()


async def test_an_error_that_nothing_expects_ends_the_agent_where_it_would_report_no_exit(
    tmp_path, coordinator, monkeypatch
):
    monkeypatch.setattr(WorkerHandle, "read_fault", raise_as(ValueError("no such fault")))
    async with Started(coordinator.url, tmp_path, FOREVER) as started:
        coordinator.publish(world(1))
        seen = await workers(tmp_path, 1, 2)
        os.kill(seen[0]["pid"], 9)
        async with asyncio.timeout(30):
            with pytest.raises(ValueError, match="no such fault"):
                await started.running
        assert not any(is_alive(w["pid"]) for w in seen)


def raise_as(error):
    def fail(*_):
        raise error

    return fail


async def test_an_agent_that_cannot_fork_one_of_its_workers_ends_the_others_without_a_report(
    tmp_path, coordinator, monkeypatch
):
    forked, fork, others = asyncio.Event(), ForkServer.fork, []

    async def fork_one(server, device, *rest):
        if device == 0:
            await forked.wait()
            raise Retryable("no process can be forked")
        others.append(await fork(server, device, *rest))
        forked.set()
        for _ in range(5):  # the error comes first
            await asyncio.sleep(0)
        return others[0]

    monkeypatch.setattr(ForkServer, "fork", fork_one)
    async with Started(coordinator.url, tmp_path, FOREVER) as started:
        coordinator.publish(world(1))
        async with asyncio.timeout(30):
            with pytest.raises(Retryable, match="no process can be forked"):
                await started.running
        assert [worker.is_running for worker in others] == [False]
        assert others[0].channel.fileno() == -1, "nothing of it stays open"
        assert not coordinator.received["/v1/exits"]
