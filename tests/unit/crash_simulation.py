"""A whole job in one event loop, without sockets or threads: coordinators in turn, and members."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import httpx
import msgspec
from aiohttp import web

from coxswain import wire
from coxswain.config import JobConfig, MixConfig, ModelConfig, ParallelConfig
from coxswain.errors import Retryable
from coxswain.layout import Layout
from coxswain.plan.step import plan_step
from coxswain.plan.values import Placement
from coxswain.planlog import membership_key
from coxswain.wire import GENERATION_HEADER, TOKEN_HEADER
from coxswain_coordinator.api.handlers import Handlers
from coxswain_coordinator.api.report import job_report
from coxswain_coordinator.driver import Driver
from coxswain_coordinator.planning.mix_edits import Edits
from coxswain_coordinator.planning.placers import Speeds
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.store_executor import StoreExecutor
from coxswain_link.http_client import Again, AsyncClient, answer_of
from coxswain_link.http_server import HttpService
from coxswain_link.metrics import build
from coxswain_link.store import Store
from tests.unit.coordinator_fakes import TOKEN, store_of
from tests.unit.crash_members import Members
from tests.unit.crash_points import Crash, Fate, Killed, MortalJsonlWriter, MortalStore, Process

T = TypeVar("T")

DEADLINE = 300.0  # of virtual time
AWAY = 1.0  # until the next coordinator starts
MOST_UNSAVED = 4  # steps; with a checkpoint every third one they never are that many
LATENCY = 1 / 64  # of a call. A power of two: sums are exact, so the order of events is fixed

_SETTINGS = msgspec.json.Decoder(tuple[ParallelConfig, ModelConfig])


@cache
def _placed(lengths: tuple[int, ...], layout: Layout, settings: bytes, speeds: Speeds) -> Placement:
    return plan_step(lengths, layout, *_SETTINGS.decode(settings), speeds or None)


def planner(lengths: list[int], layout: Layout, job: JobConfig, speeds: Speeds) -> Placement:
    """Places as `place_step` does. Each simulation has another folder in its job: what a plan depends on is the key."""
    return _placed(tuple(lengths), layout, msgspec.json.encode((job.parallelism, job.model)), speeds)


class InTurn(StoreExecutor):
    """Runs blocking work in the event loop, which fixes the order of events."""

    async def _run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return work()


class Call:
    """One call, with the parts of aiohttp's request that handlers read."""

    def __init__(self, method: str, path: str, content: bytes | None, generation: int | None, query: Any) -> None:
        where, _, tail = path.partition("?")
        self.route, self.content = (method, where), content or b""
        self.query = dict(parse_qsl(tail)) | {key: str(value) for key, value in query.items()}
        self.headers = {TOKEN_HEADER: f"Bearer {TOKEN}"}
        if generation is not None:
            self.headers[GENERATION_HEADER] = str(generation)

    async def read(self) -> bytes:
        return self.content


class Incarnation:
    """One coordinator process."""

    def __init__(
        self, job: JobConfig, folder: Path, store_of: Callable[[Process], Store], fate: Fate, number: int, edits: Edits
    ) -> None:
        self.process = Process(f"coordinator-{number}")
        metrics = build("coordinator")
        self.run = JobState(job, metrics, None, asyncio.get_running_loop().time)
        self.run.store_executor = InTurn()
        self.run.history.most_unsaved = MOST_UNSAVED
        self.run.history.steps = MortalJsonlWriter(folder, "steps.jsonl", self.process, fate)
        self.run.history.timings = MortalJsonlWriter(folder, "timings.jsonl", self.process, fate)
        self.driver = Driver(self.run, store_of(self.process), planner, self.process.name, edits)
        self.driver.checkpoints.deletes_at_once = 1  # in a fixed order
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
        """Cuts every connection, also those that wait for an answer."""
        self.process.alive = False
        for call in self._calls:
            call.cancel()

    def kill(self) -> None:
        self.end()
        self.work.cancel()

    async def answer(self, call: Call) -> web.Response:
        """Raises Retryable when the process is killed, also during the call."""
        if not self.process.alive:
            raise Retryable("connection refused")
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

    def answer_now(self, call: Call) -> int:
        """The status of a message's answer, while nothing else happens."""
        handling = self._handlers[call.route](call)
        try:
            handling.send(None)
        except StopIteration as done:
            status: int = done.value.status
            return status
        raise AssertionError(f"{call.route} waits")


class LeaderClient(AsyncClient):
    """Calls the coordinator that runs at present, with one attempt a call and real bodies."""

    def __init__(self, simulation: Simulation, caller: str = "") -> None:
        self._simulation, self._caller = simulation, caller

    def of(self, caller: str) -> LeaderClient:
        return LeaderClient(self._simulation, caller)

    def send_again(self, call: Call) -> None:
        """The same call arrives a second time, later."""
        self._simulation.send_again(call)

    async def _call(
        self, method: str, path: str, content: bytes | None, type_: type[T] | None, generation: int | None,
        deadline: float | None, params: dict[str, Any],
    ) -> T | None:  # fmt: skip
        call = Call(method, path, content, generation, params)
        return await self._simulation.carry(self._caller, call, partial(self._send, call, type_))

    async def _send(self, call: Call, type_: type[T] | None) -> T | None:
        await asyncio.sleep(LATENCY)
        life = self._simulation.life_for(self._caller)
        if life is None:
            raise Retryable("connection refused")
        answer = await life.answer(call)
        self._simulation.answered(life, self._caller, call, answer)
        body = answer.body if isinstance(answer.body, bytes) else b""
        try:
            return answer_of(httpx.Response(answer.status, content=body), type_)
        except Again as error:
            raise Retryable(str(error)) from error


class Simulation:
    """One job. `play` returns once it has ended and all members have exited."""

    def __init__(
        self,
        job: JobConfig,
        folder: Path,
        crashes: Mapping[int, Crash],
        stop_at: float | None = None,
        edited: MixConfig | None = None,
    ) -> None:
        """`edited`: the mix as a user edits it once the first segment is recorded."""
        self.job, self.folder, self._stop_at, self._edited = job, folder, stop_at, edited
        self.fate = Fate(crashes, self._outage)
        self.store = store_of(job)
        self.life: Incarnation | None = None
        self.starts = self.rounds = 0
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
        """Asks for a suspension each second, as the operator does."""
        if self._stop_at is None:
            return
        await asyncio.sleep(self._stop_at)
        self.fate.asked = len(self.fate.writes)
        while True:
            with suppress(Retryable):
                await self._client.post("/v1/stop", wire.StopRequest("suspend"))
            await asyncio.sleep(1.0)

    def send_again(self, call: Call) -> None:
        raise NotImplementedError

    async def carry(self, caller: str, call: Call, send: Callable[[], Awaitable[T]]) -> T:
        """Carries a call and its answer."""
        return await send()

    def answered(self, life: Incarnation, caller: str, call: Call, answer: web.Response) -> None:
        """Is called when a coordinator has answered, before the answer arrives."""

    def life_for(self, caller: str) -> Incarnation | None:
        """The coordinator that a member reaches."""
        return self.life

    def _start(self) -> Incarnation:
        self.starts += 1
        mix = self._edit() or self.job.mix
        job = msgspec.structs.replace(self.job, mix=mix)
        return Incarnation(job, self.folder, self._store_of, self.fate, self.starts, self._edit)

    async def _lead(self) -> bool:
        """Runs one coordinator; returns whether it reached the job's end."""
        self.members.begin()
        self.life = self._start()
        work = await self._led()
        if work.cancelled() or isinstance(work.exception(), Killed):
            return False
        work.result()
        return True

    async def _led(self) -> asyncio.Future[wire.Finished]:
        """The work of the coordinator that leads, once it has ended."""
        assert self.life is not None
        work = self.life.work
        await asyncio.wait({work})
        return work

    def _edit(self) -> MixConfig | None:
        """The mix in job.json, if it has been edited."""
        return self._edited if self._edited is not None and self.store.exists(membership_key(0)) else None

    def _outage(self) -> None:
        self.members.kill()
        if self.life is not None:
            self.life.kill()
