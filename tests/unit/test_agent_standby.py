"""The agent probes devices of its trainer that have no seat, now and then, and leaves nothing of a probe behind."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket

import pytest
from msgspec.structs import replace

from coxswain.config import StragglerConfig
from coxswain.errors import Refused, Retryable, Stale
from coxswain.layout import Device, Layout
from coxswain.wire import ProbesWanted, StandbyProbes
from coxswain_link.http_client import AsyncClient
from coxswain_train.agent.processes import Unkillable
from coxswain_train.agent.standby import StandbyProber
from tests.fake_coordinator import FakeCoordinator
from tests.unit import agent_fakes
from tests.unit.agent_fakes import FOREVER, TOKEN, Started, environment, is_alive, wait_until, workers, world

EVERY = 0.05  # seconds between two probes

# A scripted probe: notes its process and device, and answers once the agent lets it begin; then runs the test's program.
PROBE = """
import json, os, pathlib, signal, socket
def work():
    channel = socket.socket(fileno=int(os.environ["COXSWAIN_ORDERS"]))
    if channel.recv(4096):
        note = pathlib.Path(FOLDER, "probe-%d.json" % os.getpid())
        note.with_suffix(".new").write_text(json.dumps({"pid": os.getpid(), "cuda": os.environ["CUDA_VISIBLE_DEVICES"]}))
        note.with_suffix(".new").rename(note)
PROGRAM
    os._exit(0)
"""
ANSWERS = 'channel.send(json.dumps({"type": "Probed", "seconds": 0.25}).encode())'


@pytest.fixture
def coordinator():
    """Wants every device of the trainer probed, also those that have a seat."""
    with FakeCoordinator(TOKEN) as coordinator:
        coordinator.answers["/v1/probes"] = lambda *_: ProbesWanted((0, 1))
        yield coordinator


@pytest.fixture
def migrating(monkeypatch):
    monkeypatch.setattr(agent_fakes, "environment", lambda url, index: under("Migrate", url, index))


def under(action, url="", index=0):
    found = environment(url, index)
    return dataclasses.replace(found, job=replace(found.job, stragglers=StragglerConfig(action=action)))


def starting(coordinator, folder, program=ANSWERS):
    """An agent with two devices; `aside` is a world in which the second one is on standby."""
    started = Started(coordinator.url, folder, "while True: take()", probe_every=EVERY, probe="scripted_probe")
    body = "\n".join(f"        {line}" for line in program.splitlines())
    (folder / "scripted_probe.py").write_text(PROBE.replace("FOLDER", repr(str(folder))).replace("PROGRAM", body))
    return started


def aside(generation):
    found = world(generation, ("trainer-0",))
    layout = Layout(found.layout.replicas[:1], standby=(Device(0, 1),))
    return replace(found, layout=layout, seats=layout.ranks())


def said(coordinator):
    return [probe.seconds for probe in coordinator.received["/v1/probes"] if probe.seconds]


def probes(folder):
    return [int(path.stem.removeprefix("probe-")) for path in folder.glob("probe-*.json")]


async def test_a_device_on_standby_is_probed_by_a_process_of_its_own_each_time_and_the_seconds_are_reported(
    tmp_path, coordinator, migrating
):
    async with starting(coordinator, tmp_path):
        coordinator.publish(aside(3))
        first, second, third = (await coordinator.seen("/v1/probes", 4))[:3]
        assert first == StandbyProbes(3, "trainer-0", ())
        assert second == StandbyProbes(3, "trainer-0", ((1, 0.25),)), "device 0 has a seat"
        assert third == second, "each probe is reported once"
        assert len(await workers(tmp_path, 3, 1)) == 1
    assert len(probes(tmp_path)) >= 2 and not any(map(is_alive, probes(tmp_path)))


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("action", "devices", "asks"),
    [
        ("Rebalance", (1,), False),
        ("Warn", (1,), False),
        ("Migrate", (), False),
        ("Migrate", (1,), True),
        ("ReplaceNode", (1,), True),
    ],
)
async def test_an_agent_asks_for_probes_only_with_devices_on_standby_and_actions_that_put_slow_ones_there(
    action, devices, asks
):
    asked = []

    class Client:
        async def post(self, path, body, reply, deadline):
            asked.append(body)
            return ProbesWanted(())

    prober = StandbyProber(under(action), Client(), fork=None, every=30.0)
    prober.begin(1, devices)
    await asyncio.sleep(45)
    await prober.end()
    await asyncio.sleep(45)
    assert asked == [StandbyProbes(1, "trainer-0", ())] * (2 if asks else 0)


async def test_nothing_is_probed_that_the_coordinator_does_not_want(tmp_path, coordinator, migrating):
    coordinator.answers["/v1/probes"] = lambda *_: ProbesWanted(())
    async with starting(coordinator, tmp_path):
        coordinator.publish(aside(1))
        await coordinator.seen("/v1/probes", 4)
    assert probes(tmp_path) == [] and said(coordinator) == []


@pytest.mark.looptime
async def test_the_coordinator_is_asked_once_in_each_pause_between_probes():
    asked: list[float] = []

    class Client:
        async def post(self, path, body, reply, deadline):
            asked.append(asyncio.get_running_loop().time())
            return ProbesWanted(())

    prober = StandbyProber(under("Migrate"), Client(), fork=None, every=30.0)
    prober.begin(1, (1,))
    await asyncio.sleep(100)
    await prober.end()
    assert asked == [0.0, 30.0, 60.0, 90.0]


async def test_a_device_that_gets_a_seat_is_freed_of_its_probe_first(tmp_path, coordinator, migrating):
    async with starting(coordinator, tmp_path, FOREVER):
        coordinator.publish(aside(1))
        await asyncio.to_thread(wait_until, lambda: probes(tmp_path))
        (pid,) = probes(tmp_path)
        coordinator.publish(world(2))
        await workers(tmp_path, 2, 2)
        assert not is_alive(pid) and said(coordinator) == []


async def test_a_probe_ends_with_its_agent_and_with_the_process_that_forks(tmp_path, coordinator, migrating):
    async with starting(coordinator, tmp_path, FOREVER):
        coordinator.publish(aside(1))
        await asyncio.to_thread(wait_until, lambda: probes(tmp_path))
        (worker,) = await workers(tmp_path, 1, 1)
        os.kill(worker["ppid"], 9)
        await asyncio.to_thread(wait_until, lambda: len(probes(tmp_path)) == 2)  # a new one forks the next probe
    assert not any(map(is_alive, probes(tmp_path)))


async def test_a_probe_that_says_nothing_is_no_figure_and_the_next_one_follows(tmp_path, coordinator, migrating):
    async with starting(coordinator, tmp_path, "os._exit(1)"):
        coordinator.publish(aside(1))
        await asyncio.to_thread(wait_until, lambda: len(probes(tmp_path)) >= 2)
    assert said(coordinator) == []


@pytest.mark.looptime
async def test_a_probe_that_cannot_be_forked_is_no_figure_and_the_next_one_follows():
    """As where a pod has as many processes as it may."""
    said, forks = [], []

    class Client:
        async def post(self, path, body, reply, deadline):
            said.append(body.seconds)
            return ProbesWanted((1,))

    async def fork(device):
        forks.append(device)
        raise Retryable("no process can be forked")

    prober = StandbyProber(under("Migrate"), Client(), fork, every=30.0)
    prober.begin(1, (1,))
    await asyncio.sleep(100)
    await prober.end()
    assert (forks, said) == ([1, 1, 1], [()] * 4)


class SlowToEnd:
    """A probe that has closed its channel, and ends when it is let go."""

    def __init__(self):
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        theirs.close()
        self.killed, self.gone, self.closed = asyncio.Event(), asyncio.Event(), False

    async def kill(self):
        self.killed.set()
        await self.gone.wait()

    def read_fault(self):
        return None

    async def close(self):
        self.channel.close()
        self.closed = True


async def test_an_agent_that_leaves_while_a_probe_ends_waits_for_it_and_closes_what_it_leaves(coordinator):
    """Else its channel and its files stay open for ever."""
    probe = SlowToEnd()

    async def fork(device):
        return probe

    client = AsyncClient(coordinator.url, TOKEN)
    prober = StandbyProber(under("Migrate"), client, fork, every=0.0)
    prober.begin(1, (0,))
    await probe.killed.wait()
    ending = asyncio.create_task(prober.end())
    for _ in range(8):
        await asyncio.sleep(0)
    assert not (ending.done() or probe.closed)
    probe.gone.set()
    await ending
    await client.close()
    assert probe.closed


async def test_an_agent_goes_on_where_a_probe_cannot_be_killed_and_probes_no_more(coordinator, caplog):
    """As one that waits in the driver of the slow device that it probes."""
    probe, forks = SlowToEnd(), []

    async def fork(device):
        forks.append(device)
        return probe

    async def kill():
        raise Unkillable(0, 60.0)

    probe.kill = kill
    client = AsyncClient(coordinator.url, TOKEN)
    prober = StandbyProber(under("Migrate"), client, fork, every=0.0)
    prober.begin(1, (0,))
    await asyncio.to_thread(wait_until, lambda: "not probed any more" in caplog.text)
    await prober.end()
    await client.close()
    assert (forks, probe.closed) == ([0], True)
    assert (
        "not probed any more in generation 1: the process on device 0 has not ended 60 s after SIGKILL" in caplog.text
    )


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(Refused("BadRequest", "answered 404: Not Found"), id="earlier"),
        pytest.param(None, id="away"),
    ],
)
async def test_a_coordinator_of_an_earlier_release_or_one_that_is_away_leaves_the_agent_alone(
    tmp_path, coordinator, migrating, error
):
    asked = []

    def answer(*_):
        asked.append(1)
        if error and len(asked) < 3:
            raise error
        return ProbesWanted((1,))

    coordinator.answers["/v1/probes"] = answer
    async with starting(coordinator, tmp_path) as started:
        coordinator.publish(aside(1))
        await workers(tmp_path, 1, 1)
        if not error:
            coordinator.stop()
            coordinator.start()
        await asyncio.to_thread(coordinator.wait_until, lambda: said(coordinator))
        assert not started.running.done() and said(coordinator)[0] == ((1, 0.25),)


async def test_a_generation_that_is_over_is_probed_no_more(tmp_path, coordinator, migrating, caplog):
    caplog.set_level("INFO")
    asked = []

    def answer(*_):
        asked.append(1)
        raise Stale("generation 1 is over")

    coordinator.answers["/v1/probes"] = answer
    async with starting(coordinator, tmp_path) as started:
        coordinator.publish(aside(1))
        await workers(tmp_path, 1, 1)
        await asyncio.to_thread(wait_until, lambda: "generation 1 is over" in caplog.text)
        await asyncio.sleep(4 * EVERY)
        assert not started.running.done()
    assert (probes(tmp_path), asked) == ([], [1])
