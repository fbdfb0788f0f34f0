"""A container of the local cluster ends, restarts and gets ready as a kubelet's does: real processes of milliseconds."""

import asyncio
import signal
from pathlib import Path

import pytest

from coxswain.termination import TERMINATION_BYTES
from coxswain_operator.local.containers import Container, Frame
from coxswain_operator.local.memory import MemoryKills
from coxswain_operator.local.processes import Command, spawn

PROBE = {"httpGet": {"path": "/readyz", "port": 1}, "periodSeconds": 0.001}


@pytest.fixture
def make(tmp_path):
    """A container of one shell command. `probe` answers its probes, `changed` gets it at each change of its status."""

    def made(program, probe=None, changed=lambda container: None, **spec):
        def command(_):
            return Command(("/bin/sh", "-c", program), {"LOG": str(log)}, tmp_path, tmp_path / "main.log")

        log = tmp_path / "termination-log"
        frame = Frame(command, probe, lambda: changed(container), 10, lambda: "now", MemoryKills(lambda: 0))
        container = Container({"name": "main", **spec}, frame, log)
        return container

    return made


def pidfds():
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum("pidfd" in link for link in links)


async def test_a_container_that_is_stopped_before_its_start_starts_no_process(make, tmp_path):
    container = make("touch started")
    await container.stop(0)
    assert await container.run() == 137
    assert not (tmp_path / "started").exists()


async def test_a_container_shows_no_message_of_an_earlier_process(make, tmp_path):
    (tmp_path / "termination-log").write_text("of an earlier process")
    container = make("true")
    await container.run()
    assert container.status()["state"]["terminated"]["message"] == ""


async def test_a_termination_message_is_the_last_bytes_of_its_file(make, tmp_path):
    container = make("seq 3000 > $LOG")
    await container.run()
    written = (tmp_path / "termination-log").read_text()
    assert len(written) > TERMINATION_BYTES
    assert container.status()["state"]["terminated"]["message"] == written[-TERMINATION_BYTES:]


async def test_a_termination_message_that_is_no_text_is_shown_with_marks_for_what_is_none(make):
    """As where the last bytes begin in the middle of a letter."""
    container = make(r"printf '\251 full' > $LOG")
    await container.run()
    assert container.status()["state"]["terminated"]["message"] == "\ufffd full"


async def test_a_container_has_started_once_its_start_up_probe_succeeds_and_is_asked_after_its_delay(make, skip):
    asked, answer = asyncio.Event(), asyncio.Event()

    async def probe(_):
        asked.set()
        await answer.wait()
        return True

    container = make("exec sleep 100", probe, startupProbe=PROBE | {"initialDelaySeconds": 1000})
    running = asyncio.create_task(container.run())
    await turns()
    assert not asked.is_set()
    skip(1000)
    await asyncio.wait_for(asked.wait(), 5)
    assert not container.status()["started"]
    answer.set()
    await asyncio.wait_for(container.started.wait(), 5)
    await container.stop(10)
    await running


@pytest.mark.parametrize("kind", ["readinessProbe", "livenessProbe"])
async def test_a_container_that_has_ended_is_neither_started_nor_probed(make, kind):
    asked, cancelled = asyncio.Event(), asyncio.Event()

    async def probe(_):
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    container = make("exec sleep 100", probe, **{kind: PROBE})
    running = asyncio.create_task(container.run())
    await asked.wait()
    assert container.status()["started"]
    await container.stop(10)
    await running
    await asyncio.wait_for(cancelled.wait(), 5)
    assert not container.status()["started"]


async def test_a_container_stays_ready_until_its_probe_has_failed_as_often_in_a_row_as_the_threshold(make):
    answers = iter([True, False, False, True, False, False, False])
    readiness, asked_all = [], asyncio.Event()

    async def probe(_):
        readiness.append(container.ready)
        if (answer := next(answers, None)) is None:
            asked_all.set()
            await asyncio.Event().wait()
        return answer

    container = make("exec sleep 100", probe, readinessProbe=PROBE | {"failureThreshold": 3})
    running = asyncio.create_task(container.run())
    await asyncio.wait_for(asked_all.wait(), 5)
    await container.stop(10)
    await running
    assert readiness == [False, True, True, True, True, True, True, False]


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_container_that_hangs_is_ended_once_its_liveness_probe_has_failed_as_often_in_a_row_as_the_threshold(
    make,
):
    answers, asked = iter([False, False, True, False, False, False]), []

    async def probe(_):
        asked.append(next(answers))
        return asked[-1]

    container = make("exec sleep 100", probe, livenessProbe=PROBE | {"failureThreshold": 3})
    assert await asyncio.wait_for(container.run(), 5) == 143
    assert asked == [False, False, True, False, False, False]


@pytest.mark.parametrize(("said", "after"), [({}, 10), ({"terminationGracePeriodSeconds": 40}, 40)])
async def test_a_hung_container_that_is_deaf_too_is_killed_after_the_grace_of_its_probe_or_else_of_its_pod(
    make, skip, tmp_path, said, after
):
    failed = asyncio.Event()

    async def probe(_):
        if (tmp_path / "deaf").exists():
            failed.set()
        return not failed.is_set()

    program = "trap '' TERM; : > deaf; exec sleep 100"
    container = make(program, probe, livenessProbe=PROBE | {"failureThreshold": 1} | said)
    running = asyncio.create_task(container.run())
    await asyncio.wait_for(failed.wait(), 5)
    await turns()
    skip(after - 5)
    await asyncio.wait({running}, timeout=0.3)
    assert "running" in container.status()["state"]
    skip(5)
    assert await asyncio.wait_for(running, 5) == 137


async def test_a_container_is_asked_whether_it_hangs_a_period_behind_its_start_and_the_initial_delay(make, skip):
    started, asked = asyncio.Event(), asyncio.Event()

    async def probe(kind):
        (asked if kind is liveness else started).set()
        return True

    liveness = PROBE | {"initialDelaySeconds": 1000, "periodSeconds": 7}
    container = make(
        "exec sleep 100", probe, livenessProbe=liveness, startupProbe=PROBE | {"initialDelaySeconds": 1000}
    )
    running = asyncio.create_task(container.run())
    await turns()
    skip(1000)
    await asyncio.wait_for(container.started.wait(), 5)
    await turns()
    for seconds in (1000, 6):
        skip(seconds)
        await turns()
        assert (started.is_set(), asked.is_set()) == (True, False)
    skip(1)
    await asyncio.wait_for(asked.wait(), 5)
    await container.stop(10)
    await running


@pytest.mark.parametrize("said", [{}, {"failureThreshold": 0}])
async def test_a_probe_that_does_not_say_how_often_it_may_fail_may_fail_twice(make, said):
    """0 says nothing, as on Kubernetes."""
    answers, asked = iter([True, False, False, True, False, False, False]), []

    async def probe(_):
        asked.append(1)
        return next(answers)

    container = make("exec sleep 100", probe, livenessProbe=PROBE | said)
    assert await asyncio.wait_for(container.run(), 5) == 143
    assert len(asked) == 7


async def test_a_liveness_probe_that_is_no_request_is_ignored(make):
    asked = []
    liveness = {"exec": {"command": ["false"]}, "periodSeconds": 0.001}
    container = make("exec sleep 0.1", asked.append, livenessProbe=liveness)
    assert (await container.run(), asked) == (0, [])


async def test_a_sidecar_that_is_stopped_shows_its_end_and_no_restart(make):
    container = make("exec sleep 100")
    running = asyncio.create_task(container.run_for_ever())
    await container.started.wait()
    await container.stop(10)
    await running
    status = container.status()
    assert (status["state"]["terminated"]["exitCode"], status["restartCount"], status["ready"]) == (143, 0, False)


async def run_until(enough, sidecar):
    running = asyncio.create_task(sidecar.run_for_ever())
    await enough.wait()
    await sidecar.stop(0)
    running.cancel()


async def test_a_sidecar_backs_off_longer_each_time_and_starts_over_once_it_has_run_for_long(make, skip):
    """The seconds pass as its status changes: those of a back-off at once, and more than a minute in its third process."""
    seen, ends, enough = [], {}, asyncio.Event()

    def changed(container):
        status = container.status()
        if "waiting" in status["state"]:
            seen.append(status["state"]["waiting"]["message"])
            asyncio.get_running_loop().call_soon(skip, 1)
        elif "running" in status["state"]:
            skip(61 if status["restartCount"] == 2 else 0)
            ends[status["restartCount"]] = status["lastState"].get("terminated", {}).get("exitCode")
        if len(seen) == 4:
            enough.set()

    await run_until(enough, make("exit 3", changed=changed))
    assert ends == {0: None, 1: 3, 2: 3, 3: 3}
    assert seen == [f"restarts in {seconds} s" for seconds in ("0.25", "0.5", "0.25", "0.5")]


async def test_a_sidecar_is_back_after_ten_seconds_at_most(make, skip):
    seen, enough = [], asyncio.Event()

    def changed(container):
        if waiting := container.status()["state"].get("waiting"):
            seen.append(waiting["message"])
            asyncio.get_running_loop().call_soon(skip, 10)
        if len(seen) == 8:
            enough.set()

    await run_until(enough, make("exit 3", changed=changed))
    assert seen[-3:] == ["restarts in 8 s", "restarts in 10 s", "restarts in 10 s"]


async def test_a_process_is_waited_for_by_others_where_one_of_them_is_cancelled(tmp_path):
    process = spawn(Command(("/bin/sleep", "100"), {}, tmp_path, tmp_path / "log"))
    waiting = asyncio.create_task(process.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert process.alive
    assert await process.stop(10) == -signal.SIGTERM


async def test_a_thread_that_may_end_before_its_process_starts_none(tmp_path):
    """The kernel would end the process with the thread."""
    command = Command(("/bin/sleep", "100"), {}, tmp_path, tmp_path / "log")
    with pytest.raises(RuntimeError, match="main thread only"):
        await asyncio.to_thread(spawn, command)


async def test_a_process_that_has_ended_leaves_no_descriptor(tmp_path):
    before = pidfds()
    process = spawn(Command(("/bin/true",), {}, tmp_path, tmp_path / "log"))
    assert pidfds() == before + 1
    assert await process.wait() == 0
    assert pidfds() == before
