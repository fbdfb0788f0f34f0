"""A coordinator that an agent can talk to, scripted by the test, and workers that are tiny programs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

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
from coxswain.wire import Finished, Register, Registered, WorkerExit, World
from coxswain_link.environment import Environment
from coxswain_link.http_client import AsyncClient, JobEnded
from coxswain_link.http_server import HttpService
from coxswain_link.metrics import build
from coxswain_train.agent.agent import Agent

TOKEN = "job-token"

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


def world(generation: int, trainers: tuple[str, ...] = ("trainer-0", "trainer-1")) -> World:
    """Two devices a trainer."""
    layout = uniform_layout([Device(t, d) for t in range(len(trainers)) for d in range(2)], layers=1)
    return World(
        generation=generation, first_step=0, layout=layout, seats=layout.ranks(), trainers=trainers, loaders=()
    )


class Coordinator:
    """Answers /v1/world from `worlds`, the newest first; 410 once `finished` is set."""

    def __init__(self) -> None:
        self.worlds: list[World] = []
        self.finished: Finished | None = None
        self.registered: list[Register] = []
        self.exits: asyncio.Queue[WorkerExit] = asyncio.Queue()
        self.met = asyncio.Event()
        self._changed = asyncio.Event()
        self._service: HttpService | None = None
        self.port, self.generation = 0, 0

    async def start(self) -> str:
        self._service = HttpService(TOKEN, lambda: self.generation, build("coordinator"))
        self._service.route("POST", "/v1/register", self._register, Register)
        self._service.route("GET", "/v1/world", self._world)
        self._service.route("POST", "/v1/exits", self._exit, WorkerExit)
        self.port = await self._service.start("127.0.0.1", self.port)
        return f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        if self._service is not None:
            await self._service.stop()

    def publish(self, world: World) -> None:
        self.worlds.append(world)
        self.generation = world.generation
        self._changed.set()

    def finish(self, exit_code: int) -> None:
        self.finished = Finished(exit_code, "Completed", "all steps done")
        self._changed.set()

    async def _register(self, _: Any, body: Register) -> Registered:
        self.registered.append(body)
        self.met.set()
        return Registered(self.worlds[-1].generation if self.worlds else 0)

    async def _world(self, request: Any, _: None) -> World | None:
        after = int(request.query["after"])
        for _ in range(2):
            if self.finished is not None:
                raise JobEnded(self.finished)
            if self.worlds and self.worlds[-1].generation > after:
                return self.worlds[-1]
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), float(request.query["wait"]))
            except TimeoutError:
                return None
        return None

    async def _exit(self, _: Any, body: WorkerExit) -> None:
        await self.exits.put(body)


# A worker that does as it is told: takes its place, writes what it sees (whole or not at all), and lives on by the test's
# own program.
WORKER = """
import json, os, signal, socket, sys, pathlib, threading
def take():
    orders = socket.socket(fileno=os.dup(int(os.environ["COXSWAIN_ORDERS"])))
    place = json.loads(orders.recv(4096))
    note = pathlib.Path(FOLDER, "%(generation)d-%(rank)d.json" % place)
    note.with_suffix(".new").write_text(json.dumps(dict(os.environ, pid=os.getpid())))
    note.with_suffix(".new").rename(note)
    orders.send(json.dumps(place).encode())
def live():
    take()
"""


class Started:
    """An agent that runs in this process, with workers that write their environment into `folder` and run `program`."""

    def __init__(
        self, url: str, folder: Path, program: str, index: int = 0, give_up: float = 30.0, oom_kills: int = 0
    ) -> None:
        self.client = AsyncClient(url, TOKEN)
        self.metrics, self.oom_kills = build("agent"), oom_kills
        module = folder / "scripted_worker.py"
        body = "".join(f"    {line}\n" for line in program.splitlines())
        module.write_text(
            WORKER.replace("FOLDER", repr(str(folder))) + body + "def work():\n    live()\n    os._exit(0)\n"
        )
        head = f"import sys; sys.path.insert(0, {str(folder)!r})"
        start = f"{head}; from coxswain_train.agent import forkserver; forkserver.main({module.stem!r})"
        fork_server = (sys.executable, "-c", start)
        self.agent = Agent(
            environment(url, index), self.client, self.metrics, fork_server, give_up, lambda: self.oom_kills
        )
        self.life = asyncio.create_task(self.agent.run())

    async def __aenter__(self) -> Started:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.life.cancel()
        await asyncio.wait([self.life])
        await self.client.close()
