"""An agent in this process, with workers that are tiny programs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from coxswain.config import (
    BatchConfig,
    CheckpointConfig,
    JobConfig,
    MixConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
)
from coxswain.layout import Device, uniform_layout
from coxswain.wire import World
from coxswain_link.environment import Environment
from coxswain_link.http_client import AsyncClient
from coxswain_link.metrics import build
from coxswain_train.agent.agent import Agent
from tests.fake_coordinator import FakeCoordinator

TOKEN = "job-token"
FOREVER = "signal.pause()"  # a program of a worker

JOB = JobConfig(
    name="demo", namespace="default", uid="u", seed=1,
    model=ModelConfig(layers=1, hidden=8, heads=1, kv_heads=1, feed_forward=8),
    mix=MixConfig(name="m", seed=1, sources=()),
    parallelism=ParallelConfig(), batch=BatchConfig(tokens_per_step=8, max_sequence_tokens=8),
    optimizer=OptimizerConfig(learning_rate=0.1), stop_steps=1, trainers=2, devices_per_trainer=2, min_trainers=2, loaders=1,
    checkpoint=CheckpointConfig(uri="file:///tmp/x"),
)  # fmt: skip


def environment(url: str = "", index: int = 0) -> Environment:
    return Environment(
        name=f"trainer-{index}", index=index, coordinator_url=url, job=JOB, token=TOKEN,
        pod_name=f"demo-trainer-{index}-0", pod_ip="127.0.0.1", pod_uid="pod-uid",
    )  # fmt: skip


def on(hardware: str, index: int = 0, url: str = "") -> Environment:
    """The environment of a job on this hardware."""
    env = environment(url, index)
    return dataclasses.replace(env, job=replace(env.job, parallelism=replace(env.job.parallelism, hardware=hardware)))


def world(generation: int, trainers: tuple[str, ...] = ("trainer-0", "trainer-1")) -> World:
    """Two devices a trainer."""
    layout = uniform_layout([Device(t, d) for t in range(len(trainers)) for d in range(2)], layers=1)
    return World(
        generation=generation, first_step=0, layout=layout, seats=layout.ranks(), trainers=trainers, loaders=()
    )


# A scripted worker: takes its assignment, writes its environment (whole or not at all), then runs the test's program.
WORKER = """
HELD = []
import json, os, signal, socket, sys, pathlib, threading
def take():
    channel = socket.socket(fileno=os.dup(int(os.environ["COXSWAIN_ORDERS"])))
    while (assignment := json.loads(channel.recv(4096)))["type"] == "Leave":
        channel.send(json.dumps({"type": "Left", "generation": assignment["generation"], "held": HELD}).encode())
    note = pathlib.Path(FOLDER, "%(generation)d-%(rank)d.json" % assignment)
    note.with_suffix(".new").write_text(json.dumps(dict(os.environ, pid=os.getpid(), ppid=os.getppid())))
    note.with_suffix(".new").rename(note)
    channel.send(json.dumps(assignment).encode())
def run():
    take()
"""


def fork_server(folder: Path, module: str) -> tuple[str, ...]:
    """The command of a fork server whose workers do the `work` of this module in the folder."""
    head = f"import sys; sys.path.insert(0, {str(folder)!r})"
    return sys.executable, "-c", f"{head}; from coxswain_train.agent import forkserver; forkserver.main({module!r})"


class Started:
    """An agent in this process. Its workers write their environment into `folder` and run `program`."""

    def __init__(self, url: str, folder: Path, program: str, index: int = 0, oom_kills: int = 0, **limits: Any) -> None:
        self.client = AsyncClient(url, TOKEN)
        self.metrics, self.oom_kills = build("agent"), oom_kills
        module = folder / "scripted_worker.py"
        body = "".join(f"    {line}\n" for line in program.splitlines())
        module.write_text(
            WORKER.replace("FOLDER", repr(str(folder))) + body + "def work():\n    run()\n    os._exit(0)\n"
        )
        self.agent = Agent(
            environment(url, index), self.client, self.metrics, fork_server(folder, module.stem),
            oom_kills=lambda: self.oom_kills, **limits,
        )  # fmt: skip
        self.running = asyncio.create_task(self.agent.run())

    async def __aenter__(self) -> Started:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.running.cancel()
        await asyncio.wait([self.running])
        await self.client.close()


async def workers(folder: Path, generation: int, count: int) -> list[dict[str, Any]]:
    """The environments of the workers of one generation, once all have started."""
    async with asyncio.timeout(30):
        while len(found := sorted(folder.glob(f"{generation}-*.json"))) < count:  # noqa: ASYNC110, ASYNC240  another process
            await asyncio.sleep(0.02)
    return [json.loads(path.read_text()) for path in found]


async def workers_out(coordinator: FakeCoordinator, generation: int) -> Any:
    """What an agent registers as once its workers have left this world."""

    def out() -> list[Any]:
        return [r for r in coordinator.received["/v1/register"] if r.left == generation]

    await asyncio.to_thread(coordinator.wait_until, out)
    assert out()[0].generation == 0
    return out()[0]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
