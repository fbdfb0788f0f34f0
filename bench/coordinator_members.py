"""The members that `bench.coordinator` plays in one event loop, by the protocol and the limits of the real ones."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import aiohttp
import msgspec

from bench.coordinator_server import TOKEN, Shape, entries
from coxswain import wire
from coxswain.layout import Seat
from coxswain.plan.values import Task
from coxswain_data import constructor
from coxswain_link import http_client, outbox, plan_feed
from coxswain_train.worker import directives

T = TypeVar("T")

WARM_UP = 2  # steps that are not measured
PATIENCE = 300.0  # seconds until the members give up
AWAY = (aiohttp.ClientError, TimeoutError, OSError)


class Step(msgspec.Struct):
    """What a rank reads of a plan."""

    step: int


class Part(Step):
    """What a constructor reads of one."""

    tasks: tuple[Task, ...]


class Directive(msgspec.Struct):
    step: int
    plan: Step | None


class Members:
    """All members of one job. A step ends `step_seconds` after the slowest rank began it."""

    def __init__(self, shape: Shape, port: int) -> None:
        self._shape, self._url = shape, f"http://127.0.0.1:{port}"
        self._begun: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._counts: dict[int, int] = defaultdict(int)
        self._served: dict[int, int] = defaultdict(int)
        self.plan_bytes: dict[tuple[int, int], int] = defaultdict(int)  # by rank and step
        self.alone, self.requests, self.latest = 0, 0, 0.0
        self.measured_steps = shape.steps
        self.window: list[tuple[float, float]] = []  # (time, the coordinator's CPU seconds) at both ends

    async def play(self, cpu: Callable[[], float]) -> None:
        """Returns after the measured steps."""
        self._cpu = cpu
        async with self.session():
            await self._loader()
            tasks = [asyncio.create_task(self._member("trainer", i)) for i in range(self._shape.trainers)]
            tasks += [asyncio.create_task(self._member("constructor", i)) for i in range(self._shape.trainers)]
            world = await self._world(0)
            tasks += [asyncio.create_task(self._constructor(world, i)) for i in range(self._shape.trainers)]
            ranks = [asyncio.create_task(self._rank(world, seat)) for seat in world.seats]
            try:
                async with asyncio.timeout(PATIENCE + (self._shape.steps + WARM_UP) * 4 * self._shape.step_seconds):
                    await asyncio.gather(*ranks)
                    await self._all_closed()
            finally:
                for task in tasks + ranks:
                    task.cancel()
                await asyncio.gather(*tasks, *ranks, return_exceptions=True)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=http_client.KEEP_ALIVE_SECONDS)
        headers = {wire.TOKEN_HEADER: f"Bearer {TOKEN}", "Content-Type": "application/json"}
        async with aiohttp.ClientSession(self._url, connector=connector, headers=headers) as self._http:
            yield

    def rank(self, number: int) -> Rank:
        return Rank(self, number)

    async def _get(self, path: str, type_: type[T], wait: float = 0.0, **query: Any) -> tuple[T | None, int]:
        """The answer and its bytes. Connects within the worker's limit, reads within the wait and ten seconds."""
        limits = aiohttp.ClientTimeout(sock_connect=directives.REACH_DEADLINE, sock_read=wait + 10)
        params = {key: str(value) for key, value in (query | ({"wait": wait} if wait else {})).items()}
        async with self._http.get(path, params=params, timeout=limits) as reply:
            return await self._read(reply, type_)

    async def _post(self, path: str, body: object, type_: type[T]) -> T | None:
        limits = aiohttp.ClientTimeout(total=outbox.ATTEMPT_SECONDS)
        async with self._http.post(path, data=msgspec.json.encode(body), timeout=limits) as reply:
            return (await self._read(reply, type_))[0]

    async def _read(self, reply: aiohttp.ClientResponse, type_: type[T]) -> tuple[T | None, int]:
        self.requests += bool(len(self.window) == 1)
        content = await reply.read()
        if reply.status >= 400:
            raise aiohttp.ClientError(f"{reply.status}: {content[:200]!r}")
        return (msgspec.json.decode(content, type=type_) if content else None), len(content)

    async def _all_closed(self) -> None:
        """Returns once the coordinator has closed every step."""
        while True:
            report, _ = await self._get("/v1/report", wire.JobReport)
            if report is not None and report.step >= self._shape.steps + WARM_UP:
                return
            await asyncio.sleep(0.05)

    async def _loader(self) -> None:
        await self._post("/v1/register", wire.Register("loader", "loader-0", "p", "loader", "h", 7), wire.Registered)
        shares, _ = await self._get("/v1/shares", wire.Shares, 30, loader="loader-0")
        for share in shares.shares if shares else ():
            blocks = entries(self._shape)[share.share :: share.shares]
            await self._post("/v1/indexed", wire.Indexed(share, blocks, "tokenizer", 257), msgspec.Raw)

    async def _member(self, role: wire.Role, index: int) -> None:
        """Registers and polls for a newer world, as agents and constructors do."""
        devices = self._shape.devices if role == "trainer" else 0
        me = wire.Register(role, f"trainer-{index}", f"pod-{index}", f"{role}-{index}", "127.0.0.1", 0, devices)
        after = 0
        while True:
            with suppress(*AWAY):
                await self._post("/v1/register", me, wire.Registered)
                query = {"after": after, "instance": me.instance}
                world, _ = await self._get("/v1/world", wire.World, constructor.POLL_SECONDS, **query)
                after = world.generation if world else after

    async def _world(self, after: int) -> wire.World:
        while True:
            with suppress(*AWAY):
                world, _ = await self._get("/v1/world", wire.World, 30, after=after)
                if world is not None:
                    return world

    async def _constructor(self, world: wire.World, index: int) -> None:
        """Delivers digests of the sequences that begin on its replicas, as soon as their plan is committed."""
        mine = {s.replica for s in world.seats if s.device.trainer == index}
        step = world.first_step
        while True:
            with suppress(*AWAY):
                plans = plan_feed.POLL_SECONDS
                found, _ = await self._get("/v1/plans", Parts, plans, **{"from": step}, trainer=f"trainer-{index}")
                for plan in found.plans if found else ():
                    first = {s.sequence for t in plan.tasks for s in t.slices if s.start == 0 and s.replica in mine}
                    served = tuple((i, hashlib.sha256(str(i).encode()).hexdigest()) for i in sorted(first))
                    await self._post("/v1/served", wire.DeliveredDigests(1, plan.step, served), wire.Ack)
                    step = plan.step + 1

    async def _rank(self, world: wire.World, seat: Seat) -> None:
        rank = self.rank(seat.rank)
        helpers = [asyncio.create_task(self._feed(world, rank)), asyncio.create_task(rank.send())]
        try:
            for step in range(world.first_step, world.first_step + self._shape.steps + WARM_UP):
                await self.directive(rank, step)
                await self._compute(rank, step)
            await rank.sent.wait()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _feed(self, world: wire.World, rank: Rank) -> None:
        step = world.first_step
        while True:
            with suppress(*AWAY):
                wait = plan_feed.POLL_SECONDS
                found, size = await self._get("/v1/plans", Steps, wait, **{"from": step}, rank=rank.number)
                for plan in found.plans if found else ():
                    rank.plans.add(plan.step)
                    self.plan_bytes[rank.number, plan.step] += size // len(found.plans)
                    step = plan.step + 1

    async def directive(self, rank: Rank, step: int) -> None:
        """Asks as a worker does; continues alone where a worker would."""
        began = time.monotonic()
        while True:
            if rank.reachable:
                try:
                    found, size = await self._get("/v1/steps", Directive, 10, step=step, rank=rank.number)
                    if found is not None:
                        self.plan_bytes[rank.number, step] += size
                        break
                except AWAY:
                    rank.reachable = False
            elif step in rank.plans:
                self.alone += 1
                break
            else:
                await asyncio.sleep(0.25)
        if len(self.window) == 1:
            self.latest = max(self.latest, time.monotonic() - began)

    async def _compute(self, rank: Rank, step: int) -> None:
        """All ranks begin a step together and end it together, `step_seconds` later."""
        self._counts[step] += 1
        if self._counts[step] == self._shape.ranks:
            self._begin(step)
        await self._begun[step].wait()
        await asyncio.sleep(self._shape.step_seconds)
        timings = tuple(wire.TaskTiming(i // 2, "FB"[i % 2], i * 0.1, i * 0.1 + 0.1) for i in range(16))
        rank.put(wire.StepReport(1, step, rank.number, 1.0, 1, 1.0, 1e-3, 1.0, 0.9, 0.01, 0.05, timings))

    def _begin(self, step: int) -> None:
        self._begun[step].set()
        if step in (WARM_UP - 1, WARM_UP + self._shape.steps - 1):
            self.window.append((time.monotonic(), self._cpu()))


class Parts(msgspec.Struct):
    plans: tuple[Part, ...]


class Steps(msgspec.Struct):
    plans: tuple[Step, ...]


class Rank:
    """A rank's outbox: reports as they come, heartbeats when there is none."""

    def __init__(self, members: Members, number: int) -> None:
        self._members, self.number = members, number
        self._queue: asyncio.Queue[wire.StepReport] = asyncio.Queue()
        self.sent = asyncio.Event()  # the queue is empty, and the coordinator has all of it
        self.plans: set[int] = set()  # committed steps that have been fetched
        self.reachable = True

    def put(self, report: wire.StepReport) -> None:
        self.sent.clear()
        self._queue.put_nowait(report)

    async def send(self) -> None:
        pause, message = outbox.HEARTBEAT_SECONDS, None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    message = message or await self._queue.get()
            path, body = ("/v1/reports", message) if message else ("/v1/beats", wire.Heartbeat(1, self.number))
            try:
                ack = await self._members._post(path, body, wire.Ack)
            except AWAY:
                self.reachable = False
                continue
            self.reachable, message = True, None
            if self._queue.empty():
                self.sent.set()
            pause = (ack and ack.heartbeat_seconds) or outbox.HEARTBEAT_SECONDS
