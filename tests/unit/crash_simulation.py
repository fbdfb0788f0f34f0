"""A whole job in one event loop, without sockets or threads: a coordinator at a time, and members that outlive it, or do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import httpx
import msgspec
from aiohttp import web

from coxswain import wire
from coxswain.config import JobConfig
from coxswain.errors import Retryable
from coxswain.layout import Layout
from coxswain.plan.values import Placement
from coxswain.wire import GENERATION_HEADER, TOKEN_HEADER
from coxswain_coordinator.api.handlers import Handlers
from coxswain_coordinator.api.report import job_report
from coxswain_coordinator.driver import Driver
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.store_executor import StoreExecutor
from coxswain_link.http_client import AsyncClient, _Again, _read
from coxswain_link.http_server import HttpService
from coxswain_link.metrics import build
from coxswain_link.store import Store
from tests.unit.coordinator_fakes import TOKEN, place, store_of
from tests.unit.crash_members import Members
from tests.unit.crash_points import Crash, Fate, Killed, MortalJsonlWriter, MortalStore, Process

T = TypeVar("T")

DEADLINE = 300.0  # of virtual time
AWAY = 1.0  # until the next coordinator is there
MOST_UNSAVED = 4  # steps; with a checkpoint every third one they never are that many
LATENCY = 1 / 64  # of a call. Times are sums of powers of two, so that they are exact and the order is always the same

_placed = cache(lambda lengths, layout, job: place(list(lengths), layout, msgspec.json.decode(job, type=JobConfig)))


def planner(lengths: list[int], layout: Layout, job: JobConfig) -> Placement:
    found: Placement = _placed(tuple(lengths), layout, msgspec.json.encode(job))
    return found


class InTurn(StoreExecutor):
    """Blocking work in the event loop: one order of events for one fate."""

    async def _run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return work()


class Call:
    """One call, with what handlers look at of aiohttp's request."""

    def __init__(self, method: str, path: str, content: bytes | None, generation: int | None, query: Any) -> None:
        where, _, tail = path.partition("?")
        self.route, self._content = (method, where), content or b""
        self.query = dict(parse_qsl(tail)) | {key: str(value) for key, value in query.items()}
        self.headers = {TOKEN_HEADER: f"Bearer {TOKEN}"}
        if generation is not None:
            self.headers[GENERATION_HEADER] = str(generation)

    async def read(self) -> bytes:
        return self._content


class Incarnation:
    """One coordinator process, from its start to its death."""

    def __init__(
        self, job: JobConfig, folder: Path, store_of: Callable[[Process], Store], fate: Fate, number: int
    ) -> None:
        self.process = Process(f"coordinator-{number}")
        metrics = build("coordinator")
        self.run = JobState(job, metrics, None, asyncio.get_running_loop().time)
        self.run.store_executor = InTurn()
        self.run.history.most_unsaved = MOST_UNSAVED
        self.run.history.steps = MortalJsonlWriter(folder, "steps.jsonl", self.process, fate)
        self.run.history.timings = MortalJsonlWriter(folder, "timings.jsonl", self.process, fate)
        self.driver = Driver(self.run, store_of(self.process), planner, self.process.name)
        service = HttpService(TOKEN, lambda: self.run.generation, metrics)
        Handlers(self.run, self.driver.ack_end).routes(service)
        self._handlers = {
            (r.method, r.resource.canonical): r.handler for r in service.app.router.routes() if r.resource
        }
        self._calls: set[asyncio.Future[Any]] = set()
        self.work = asyncio.ensure_future(self._work())

    async def _work(self) -> wire.Finished:
        try:
            finished = await self.driver.drive()
            await self.driver.drain()
            return finished
        finally:
            if self.run.finished is None:
                self.end()

    def end(self) -> None:
        """Nobody hears of it any more, not even who waits for an answer."""
        self.process.alive = False
        for call in self._calls:
            call.cancel()

    async def answer(self, call: Call) -> web.Response:
        """Raises Retryable when nobody listens, or when it dies meanwhile."""
        if not self.process.alive:
            raise Retryable("nobody listens")
        answer = asyncio.ensure_future(self._handlers[call.route](call))
        self._calls.add(answer)
        answer.add_done_callback(self._calls.discard)
        try:
            await asyncio.wait({answer})
        finally:
            answer.cancel()
        if answer.cancelled():
            raise Retryable("the connection broke")
        found: web.Response = answer.result()
        return found


class LeaderClient(AsyncClient):
    """Its one attempt a call reaches the coordinator that lives by then; bodies are those of the wire."""

    def __init__(self, simulation: Simulation) -> None:
        self._game = simulation

    async def _call(
        self, method: str, path: str, content: bytes | None, type_: type[T] | None, generation: int | None,
        deadline: float | None, params: dict[str, Any],
    ) -> T | None:  # fmt: skip
        await asyncio.sleep(LATENCY)
        if self._game.life is None:
            raise Retryable("nobody listens")
        answer = await self._game.life.answer(Call(method, path, content, generation, params))
        body = answer.body if isinstance(answer.body, bytes) else b""
        try:
            return _read(httpx.Response(answer.status, content=body), type_)
        except _Again as error:
            raise Retryable(str(error)) from error


class Simulation:
    """One job. `play` returns once it has ended, whatever died meanwhile, and all members have left."""

    def __init__(
        self, job: JobConfig, folder: Path, crashes: Mapping[int, Crash], stop_at: float | None = None
    ) -> None:
        self.job, self.folder, self._stop_at = job, folder, stop_at
        self.fate = Fate(crashes, self._outage)
        self.store = store_of(job)
        self.life: Incarnation | None = None
        self.lives = self.rounds = 0
        self._client = LeaderClient(self)
        self.members = Members(job, self._client, self._store_of)

    def _store_of(self, process: Process) -> Store:
        return MortalStore(self.store, self.folder / "store", process, self.fate)

    async def play(self) -> wire.JobReport:
        operator = asyncio.create_task(self._ask_to_stop())
        try:
            async with asyncio.timeout(DEADLINE):
                while not await self._lead():
                    self.life = None
                    await asyncio.sleep(AWAY)
                await self.members.ended()
        except TimeoutError:
            state = job_report(self.life.run) if self.life else "no coordinator"
            raise AssertionError(f"no end within {DEADLINE} virtual seconds: {self.members.faults} {state}") from None
        finally:
            operator.cancel()
        assert self.life is not None
        return job_report(self.life.run)

    async def _ask_to_stop(self) -> None:
        """What the operator does once the job is to be suspended: it asks each second."""
        if self._stop_at is None:
            return
        await asyncio.sleep(self._stop_at)
        self.fate.asked = len(self.fate.writes)
        while True:
            with suppress(Retryable):
                await self._client.post("/v1/stop", wire.StopRequest("suspend"))
            await asyncio.sleep(1.0)

    async def _lead(self) -> bool:
        """One coordinator's time; whether it saw the job's end."""
        self.members.begin()
        self.lives += 1
        self.life = Incarnation(self.job, self.folder, self._store_of, self.fate, self.lives)
        work = self.life.work
        await asyncio.wait({work})
        if work.cancelled() or isinstance(work.exception(), Killed):
            return False
        work.result()
        return True

    def _outage(self) -> None:
        self.members.kill()
        if self.life is not None:
            self.life.end()
            self.life.work.cancel()
