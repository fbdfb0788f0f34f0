"""A device on standby on real processes: the agent's fork server, the probe's process with torch, and a quota of its group."""

from __future__ import annotations

import asyncio
import dataclasses
import os

import pytest
from msgspec.structs import replace

from bench.cpu_shares import Shares
from coxswain.config import StragglerConfig
from coxswain.layout import Device, Layout
from coxswain.wire import ProbesWanted
from coxswain_link.http_client import AsyncClient
from coxswain_link.metrics import build
from coxswain_train.agent.agent import Agent
from tests.fake_coordinator import FakeCoordinator
from tests.unit.agent_fakes import TOKEN, environment, world

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="control groups need root"),
]

SHARE = 0.1  # of a core, in periods of 0.1 s


async def test_a_quota_makes_the_probes_of_a_device_on_standby_slow_and_its_end_makes_them_fast(monkeypatch):
    monkeypatch.setenv("COXSWAIN_JOB_CONFIG", "")
    env = environment()
    job = replace(
        env.job, stragglers=StragglerConfig(action="Migrate"), parallelism=replace(env.job.parallelism, hardware="cpu")
    )
    with FakeCoordinator(TOKEN) as coordinator, Shares(1, SHARE, period=100_000) as shares:
        coordinator.answers["/v1/probes"] = lambda *_: ProbesWanted((0, 1))
        client = AsyncClient(coordinator.url, TOKEN)
        agent = Agent(dataclasses.replace(env, job=job), client, build("agent"), probe_every=0.1)
        running = asyncio.create_task(agent.run())
        found = world(1, ("trainer-0",))
        layout = Layout((), standby=(Device(0, 0), Device(0, 1)))
        coordinator.publish(replace(found, layout=layout, seats=()))
        first = (await coordinator.seen("/v1/probes", 2))[1].seconds
        print(first)
        running.cancel()
        await asyncio.wait([running])
        await client.close()
