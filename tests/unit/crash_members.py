"""Loaders, constructors and agents as tasks that follow the real protocol."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeVar

from coxswain import digests, wire
from coxswain.config import JobConfig
from coxswain.errors import Retryable, Stale
from coxswain.layout import Seat
from coxswain.membership.values import Sequence
from coxswain_link.http_client import AsyncClient, JobEnded
from coxswain_link.store import Store
from tests.unit.coordinator_fakes import BLOCKS, block_of, tokens_of
from tests.unit.crash_outbox import POLL, REACH_DEADLINE, Feed, Outbox
from tests.unit.crash_points import Killed, Process
from tests.unit.crash_worker import Ring, Worker

T = TypeVar("T")

EXIT_SECONDS = 20.0


@cache
def digest_of(sequence: Sequence) -> str:
    return digests.tokens_digest(tokens_of(sequence))


@dataclass
class Member:
    """The state of a service. `ends`: exit codes of an agent's workers of this generation."""

    role: wire.Role
    name: str
    devices: int = 0
    generation: int = 0
    ends: list[int] = field(default_factory=list)
    left: bool = False  # all workers have left the world
    leave: Callable[[], Awaitable[None]] | None = None

    @property
    def running_generation(self) -> int:
        """The world of which all workers run."""
        return self.generation if self.devices and not self.ends and not self.left else 0


class Members:
    """All of one job but its coordinator. `store_of` makes the store of a process, with its crashes."""

    def __init__(self, job: JobConfig, client: AsyncClient, store_of: Callable[[Process], Store]) -> None:
        self._job, self._client, self._store_of = job, client, store_of
        self._rings: dict[int, Ring] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._round = 0
        self.faults: list[Exception] = []  # of the simulation itself
        self.computed: Counter[tuple[int, int]] = Counter()  # how often a rank has done a step

    def begin(self) -> None:
        """Starts all members that do not run."""
        if self._tasks:
            return
        self._round += 1
        members = [self._loader(i) for i in range(self._job.loaders)]
        for i in range(self._job.trainers):
            members += [self._constructor(i), self._agent(i)]
        self._tasks = [asyncio.create_task(_until_ended(member)) for member in members]

    def kill(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    async def ended(self) -> None:
        await asyncio.gather(*self._tasks)

    async def _follow(self, member: Member) -> wire.World:
        """Registers until there is a newer world than the member knows."""
        pod, instance = f"pod-{member.name}-{self._round}", f"{member.role}-{member.name}-{self._round}"
        query: dict[str, Any] = {"after": member.generation, "wait": POLL, "instance": instance}
        while True:
            try:
                me = wire.Register(
                    member.role, member.name, pod, instance, "127.0.0.1", 7, member.devices, member.running_generation
                )
                reply = await self._client.post("/v1/register", me, wire.Registered)
                if reply.lost and member.leave is not None:
                    await member.leave()
                    member.left = True
                    continue
                if member.role == "loader":
                    await self._announce(member.name)
                if (world := await self._client.get("/v1/world", wire.World, **query)) is not None:
                    member.generation = world.generation
                    return world
            except Retryable:
                await asyncio.sleep(REACH_DEADLINE)

    async def _loader(self, index: int) -> None:
        await self._follow(Member("loader", f"loader-{index}", generation=1 << 30))

    async def _announce(self, name: str) -> None:
        owned = await self._client.get("/v1/shares", wire.Shares, loader=name, wait=POLL)
        for share in owned.shares if owned else ():
            blocks = tuple(block_of(share.source, b) for b in range(BLOCKS))[share.share :: share.shares]
            await self._client.post("/v1/indexed", wire.Indexed(share, blocks, "tokenizer", 257))

    async def _constructor(self, index: int) -> None:
        me, helpers = Member("constructor", f"trainer-{index}"), list[asyncio.Task[Any]]()
        try:
            while True:
                world = await self._follow(me)
                await _cancel(helpers)
                mail, feed = Outbox(self._client, world.generation), Feed(self._client, world)
                mine = {s.replica for s in world.seats if s.device.trainer == index}
                deliver = partial(_deliver, mail, mine)
                helpers = [asyncio.create_task(mail.run()), asyncio.create_task(feed.run(deliver))]
        finally:
            await _cancel(helpers)

    async def _agent(self, index: int) -> None:
        me, crew = Member("trainer", f"trainer-{index}", self._job.devices_per_trainer), list[asyncio.Task[None]]()
        me.leave = lambda: _cancel(crew)
        try:
            while True:
                world = await self._follow(me)
                await _cancel(crew)
                me.ends, me.left = [], False
                seats = [s for s in world.seats if s.device.trainer == index]
                crew = [asyncio.create_task(self._watch(world, seat, me)) for seat in seats]
        except JobEnded:
            if crew:
                await asyncio.wait(crew, timeout=EXIT_SECONDS)
            raise
        finally:
            await _cancel(crew)

    async def _watch(self, world: wire.World, seat: Seat, agent: Member) -> None:
        """Runs one worker and reports its end."""
        store = self._store_of(Process(f"worker-{seat.rank}"))
        worker = Worker(self._job, self._client, store, world, seat, self._rings, self._count)
        try:
            code = await worker.run()
        except Killed:
            code = -9
        except Exception as fault:
            self.faults.append(fault)
            raise
        agent.ends.append(code)
        exit_ = wire.WorkerExit(world.generation, agent.name, seat.device.device, seat.rank, code)
        await _patiently(lambda: self._client.post("/v1/exits", exit_))

    def _count(self, rank: int, step: int) -> None:
        self.computed[rank, step] += 1


def _deliver(mail: Outbox, replicas: set[int], plan: wire.StepPlan) -> None:
    """A constructor's digests of a step: sequences whose first token is on a replica of its trainer."""
    mine = {s.sequence for t in plan.tasks for s in t.slices if s.start == 0 and s.replica in replicas}
    found = tuple((i, digest_of(plan.sequences[i])) for i in sorted(mine))
    mail.put("/v1/served", plan.step, wire.DeliveredDigests(plan.generation, plan.step, found))


async def _patiently(call: Callable[[], Awaitable[Any]]) -> None:
    while True:
        with suppress(Stale, JobEnded):
            try:
                await call()
            except Retryable:
                await asyncio.sleep(REACH_DEADLINE)
                continue
        return


async def _until_ended(member: Awaitable[None]) -> None:
    with suppress(JobEnded):
        await member


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
