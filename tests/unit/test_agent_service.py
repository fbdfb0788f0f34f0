"""The agent as a service: its pages say whether it has registered, and SIGTERM ends it with all that it runs."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from coxswain.errors import Retryable
from coxswain.wire import Fault
from coxswain_link import cgroup
from coxswain_link.http_server import HttpService
from coxswain_train.agent import agent
from tests.fake_coordinator import FakeCoordinator
from tests.unit import agent_fakes
from tests.unit.agent_fakes import FOREVER, TOKEN, Started, environment, is_alive, workers, world


@pytest.fixture
def coordinator() -> Iterator[FakeCoordinator]:
    with FakeCoordinator(TOKEN) as coordinator:
        yield coordinator


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[int]:
    """Where the pages of a service that starts are."""
    plain, found = HttpService.start, asyncio.Queue[int]()

    async def start(self: HttpService, host: str, port: int) -> int:
        found.put_nowait(await plain(self, host, port))
        return 0

    monkeypatch.setattr(HttpService, "start", start)
    return found


def scripted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes workers of an agent write their environment into the folder and then wait."""
    (folder / "scripted_worker.py").write_text(
        agent_fakes.WORKER.replace("FOLDER", repr(str(folder))) + f"    {FOREVER}\ndef work():\n    run()\n"
    )
    start = f"import sys; sys.path.insert(0, {str(folder)!r}); from coxswain_train.agent import forkserver"
    fork_server = (sys.executable, "-c", f"{start}; forkserver.main('scripted_worker')")
    monkeypatch.setattr(agent, "Agent", partial(agent.Agent, fork_server=fork_server))


async def status(port: int, page: str = "readyz") -> int:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/{page}") as answer:
        return answer.status


async def test_sigterm_ends_the_agent_its_workers_and_its_pages(
    tmp_path: Path, coordinator: FakeCoordinator, ports: asyncio.Queue[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(tmp_path, monkeypatch)
    running = asyncio.create_task(agent.serve(environment(coordinator.url), port=0))
    port = await asyncio.wait_for(ports.get(), 30)
    coordinator.publish(world(1))
    pids = [worker["pid"] for worker in await workers(tmp_path, 1, 2)]
    assert await status(port, "healthz") == 200
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, 30) == 1
    assert not any(is_alive(pid) for pid in pids)
    with pytest.raises(aiohttp.ClientConnectorError):
        await status(port)


async def test_an_agent_is_ready_once_a_coordinator_has_registered_it(
    tmp_path: Path, coordinator: FakeCoordinator, ports: asyncio.Queue[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(tmp_path, monkeypatch)
    registered = coordinator.answers["/v1/register"]

    def away(*_: Any) -> None:
        raise Retryable("not yet")

    coordinator.answers["/v1/register"] = away
    running = asyncio.create_task(agent.serve(environment(coordinator.url), port=0))
    port = await asyncio.wait_for(ports.get(), 30)
    assert await status(port) == 503
    coordinator.answers["/v1/register"] = registered
    async with asyncio.timeout(30):
        while await status(port) != 200:  # noqa: ASYNC110  another task of the loop registers
            await asyncio.sleep(0.01)
    coordinator.finish(3)
    assert await asyncio.wait_for(running, 30) == 3


async def test_an_agent_registers_with_the_names_of_its_pod_and_its_node(
    tmp_path: Path, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = dataclasses.replace(environment(coordinator.url, 1), node="node-7", config="demo-config")
    monkeypatch.setattr(agent_fakes, "environment", lambda *_: env)
    async with Started(coordinator.url, tmp_path, FOREVER, index=1):
        me = (await coordinator.seen("/v1/register"))[0]
    assert (me.role, me.name, me.pod, me.host, me.port) == ("trainer", "trainer-1", "demo-trainer-1-0", "127.0.0.1", 0)
    assert (me.node, me.config, me.generation, me.left, me.held) == ("node-7", "demo-config", 0, *[msgspec.UNSET] * 2)


@pytest.mark.parametrize(
    ("limit", "said"), [(2 << 30, "for its memory (limit 2048 MiB): raise"), (None, "for its memory: raise")]
)
async def test_an_agent_that_leaves_for_the_memory_of_a_worker_writes_why_and_the_limit_as_its_own_fault(
    tmp_path: Path, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch, limit: int | None, said: str
) -> None:
    log = tmp_path / "fault"
    env = dataclasses.replace(environment(coordinator.url), termination_log=log)
    monkeypatch.setattr(agent_fakes, "environment", lambda *_: env)
    monkeypatch.setattr(cgroup, "limit", lambda: limit)
    async with Started(coordinator.url, tmp_path, FOREVER) as started:
        coordinator.publish(world(1))
        victim = (await workers(tmp_path, 1, 2))[1]
        started.oom_kills += 1
        os.kill(victim["pid"], 9)
        await coordinator.seen("/v1/exits")
        coordinator.lose(1)
        assert await asyncio.wait_for(started.running, 30) == 1
    fault = msgspec.json.decode(log.read_bytes(), type=Fault)
    assert (fault.reason, fault.retryable) == ("OOMKilled", True)
    assert fault.message.startswith("rank 1 was killed ") and said in fault.message
    assert "under `cox run` the limit of its control group" in fault.message  # no container has one there


async def test_an_agent_whose_fork_server_the_kernel_kills_for_its_memory_writes_that_as_its_own_fault(
    tmp_path: Path, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing torch takes most of what a small container has. Before, the message named a log that says nothing."""
    log = tmp_path / "fault"
    env = dataclasses.replace(environment(coordinator.url), termination_log=log)
    monkeypatch.setattr(agent_fakes, "environment", lambda *_: env)
    started = Started(coordinator.url, tmp_path, FOREVER)
    (tmp_path / "scripted_worker.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    started.oom_kills += 1
    async with started:
        assert await asyncio.wait_for(asyncio.shield(started.running), 20) == 1
    fault = msgspec.json.decode(log.read_bytes(), type=Fault)
    assert (fault.reason, fault.retryable) == ("OOMKilled", True)
    assert fault.message.startswith("the process that forks the workers was killed for its memory")


@pytest.mark.parametrize("code", [1, 2])
async def test_the_fault_of_the_job_is_that_of_its_agent_too(
    tmp_path: Path, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    log = tmp_path / "fault"
    env = dataclasses.replace(environment(coordinator.url), termination_log=log)
    monkeypatch.setattr(agent_fakes, "environment", lambda *_: env)
    async with Started(coordinator.url, tmp_path, FOREVER) as started:
        coordinator.publish(world(1))
        await workers(tmp_path, 1, 2)
        coordinator.finish(code)
        assert await asyncio.wait_for(started.running, 15) == code  # the workers would never end
    assert msgspec.json.decode(log.read_bytes(), type=Fault) == Fault(
        "Completed", "all steps done", retryable=code == 1
    )
