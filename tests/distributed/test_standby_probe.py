"""Probes of a device on standby on real processes: the agent, its fork server, torch, and the quota of their group."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from bench.cpu_shares import Shares
from coxswain import names
from coxswain.config import StragglerConfig
from coxswain.layout import Device, Layout
from coxswain.wire import ProbesWanted
from coxswain_link.http_client import AsyncClient
from coxswain_link.metrics import build
from coxswain_train.agent.agent import FORK_SERVER, Agent
from tests.fake_coordinator import FakeCoordinator
from tests.unit.agent_fakes import TOKEN, environment, world

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="control groups need root"),
]

SHARE = 0.1  # of a core, by periods of 0.1 s


async def test_a_quota_makes_the_probes_of_a_device_on_standby_slow_until_it_is_lifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeCoordinator(TOKEN) as coordinator, Shares(1, SHARE, period=100_000) as shares:
        coordinator.answers["/v1/probes"] = lambda *_: ProbesWanted((0,))
        async with running(coordinator, tmp_path, monkeypatch):
            await asyncio.to_thread(coordinator.wait_until, lambda: is_ready(coordinator), 60)
            shares.put([int((tmp_path / "fork-server").read_text())])
            found = world(1, ("trainer-0",))
            coordinator.publish(replace(found, layout=Layout((), standby=(Device(0, 0),)), seats=()))
            slow = await probed(coordinator, 2)
            shares.limit(0, 4.0)
            well = (await probed(coordinator, 5))[3:]  # the third may have begun before
    assert min(slow) > 3 * max(well)


def is_ready(coordinator: FakeCoordinator) -> bool:
    """Whether the agent has said that its fork server has imported what workers need."""
    return any(me.starting is UNSET for me in coordinator.received["/v1/register"])


@asynccontextmanager
async def running(coordinator: FakeCoordinator, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The agent of a trainer on CPU, with the fork server of every job, which notes its pid."""
    env = environment(coordinator.url)
    hardware = replace(env.job.parallelism, hardware="cpu")
    job = replace(env.job, parallelism=hardware, stragglers=StragglerConfig(action="Migrate"))
    (folder / "job.json").write_bytes(msgspec.json.encode(job))
    (folder / "token").write_text(TOKEN)
    set_ = {
        names.ENV_NAME: env.name, names.ENV_COORDINATOR: env.coordinator_url, names.ENV_JOB_DIR: str(folder),
        names.ENV_TOKEN_DIR: str(folder), names.ENV_POD_IP: env.pod_ip,
    }  # fmt: skip
    for name, value in set_.items():
        monkeypatch.setenv(name, value)
    client = AsyncClient(coordinator.url, TOKEN)
    noting = ("sh", "-c", f'echo $$ > "{folder}/fork-server"; exec "$@"', "sh", *FORK_SERVER)
    agent = Agent(dataclasses.replace(env, job=job), client, build("agent"), noting, probe_every=0.1)
    task = asyncio.create_task(agent.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        await client.close()


async def probed(coordinator: FakeCoordinator, count: int) -> list[float]:
    """The seconds of the first probes."""

    def found() -> list[float]:
        return [seconds for probe in coordinator.received["/v1/probes"] for _, seconds in probe.seconds]

    await asyncio.to_thread(coordinator.wait_until, lambda: len(found()) >= count, 60)
    return found()
