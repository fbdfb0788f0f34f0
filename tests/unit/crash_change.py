"""A job whose workers keep living state, and what is killed at which point of a change of world."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from coxswain import wire
from coxswain.config import JobConfig
from coxswain.errors import Retryable, Stale
from coxswain_coordinator.state.job_state import JobState
from coxswain_link.environment import Environment
from coxswain_link.http_client import AsyncClient
from coxswain_link.metrics import build
from coxswain_train.agent.agent import Agent
from coxswain_train.worker.assignments import Assignment
from tests.unit import crash_points
from tests.unit.crash_ledger import Ledger
from tests.unit.crash_living import Live, LivingWorker
from tests.unit.crash_members import Members
from tests.unit.crash_outbox import POLL, REACH_DEADLINE
from tests.unit.crash_points import Fate
from tests.unit.crash_processes import ForkServer
from tests.unit.crash_simulation import AWAY, Call, Incarnation, LeaderClient, Simulation
from tests.unit.crash_troubles import Rule, Troubles

T = TypeVar("T")

Victims = Sequence[str]  # coordinator, trainer-N, worker-N (the one of trainer N), a RIVAL
EVERYONE = ("", *(f"{kind}-{n}" for kind in ("trainer", "worker") for n in range(3)))
RIVALS: Mapping[str, tuple[Collection[str], float]] = {
    "second coordinator": ((), 0.0),
    "second coordinator, trainer-1 has the first": (("trainer-1", "worker-1"), 6.0),
    "second coordinator, all have the first": (EVERYONE, 1.5),
}
"""A coordinator that starts beside the one that runs, and the members that reach only the first for some seconds."""

BESIDE = 6.0  # seconds until the first of two coordinators is deleted, as the operator does
Order = tuple[float, Callable[["ChangeSimulation"], None]]


class PointFate(Fate):
    """Numbers writes and messages alike; `strikes` kills before some of them."""

    def __init__(self, strikes: Mapping[int, Victims], kill: Callable[[str], None], again: Collection[int]) -> None:
        super().__init__({}, lambda: None)
        self._strikes, self._kill, self._again, self.points = strikes, kill, again, list[str]()

    @property
    def arrives_again(self) -> bool:
        """Whether the message of the latest point arrives once more, in the next world."""
        return len(self.points) - 1 in self._again

    def point(self, what: str) -> None:
        number = len(self.points)
        self.points.append(what)
        for victim in self._strikes.get(number, ()):
            self._kill(victim)

    def write(
        self, process: crash_points.Process, what: str, whole: Callable[[], Any], half: Callable[[], None]
    ) -> Any:
        process.check()
        if "json" not in what.partition(" ")[2] or "put" in what:
            self.point(f"{process.name}: {what}")
        process.check()
        self.writes.append(f"{process.name}: {what}")
        return whole()


class PointClient(AsyncClient):
    """Of one process: a dead one sends nothing. Repeats a call until its deadline, as the real one does."""

    def __init__(
        self, client: LeaderClient, fate: PointFate, name: str, is_alive: Callable[[], bool], patient: bool
    ) -> None:
        self._fate, self._name, self._is_alive, self._patient = fate, name, is_alive, patient
        self._client = client.of(name)

    async def _call(
        self, method: str, path: str, content: Any, type_: Any, generation: Any, deadline: Any, params: Any
    ) -> Any:
        if method == "POST" and path != "/v1/beats":
            self._fate.point(f"{self._name}: {path}")
            if self._fate.arrives_again:
                self._client.send_again(Call(method, path, content, generation, params))
        loop = asyncio.get_running_loop()
        until = loop.time() + (0.0 if not self._patient else 30.0 if deadline is None else deadline)
        while True:
            if not self._is_alive():
                await asyncio.Event().wait()
            try:
                return await self._client._call(method, path, content, type_, generation, deadline, params)
            except Retryable:
                if loop.time() >= until:
                    raise
                await asyncio.sleep(REACH_DEADLINE)


class LivingMembers(Members):
    """Agents are real ones."""

    fate: PointFate
    _client: LeaderClient

    def begin(self) -> None:
        self.agents: dict[int, tuple[asyncio.Task[int], ForkServer]] = getattr(self, "agents", {})
        super().begin()

    def kill_one(self, victim: str) -> None:
        kind, _, number = victim.partition("-")
        task, processes = self.agents[int(number)]
        for process in processes.made:
            process.kill()
        if kind == "trainer":
            self._dead.add(int(number))
            task.cancel()

    async def _agent(self, index: int) -> None:
        self._dead: set[int] = getattr(self, "_dead", set())
        for number in range(100):
            alive = [True]
            made = ForkServer(lambda live, order, i=index: self._make(live, order, i), self.faults.append)
            env = Environment(
                name=f"trainer-{index}", index=index, coordinator_url="", job=self._job, token="",
                pod_name=f"pod-trainer-{index}-{number}", pod_ip="127.0.0.1", pod_uid="",
            )  # fmt: skip
            client = PointClient(self._client, self.fate, f"trainer-{index}", lambda a=alive: a[0], True)
            agent = Agent(env, client, build("agent"), forks=lambda *_, own=made: own, oom_kills=lambda: 0)
            task = asyncio.create_task(agent.run())
            self.agents[index] = task, made
            try:
                await asyncio.wait({task})
            finally:
                alive[0] = False
                task.cancel()
            if index not in self._dead:
                task.result()
                return
            self._dead.discard(index)
            await asyncio.sleep(AWAY)

    async def _make(self, live: Live, order: Assignment, trainer: int) -> LivingWorker:
        client = PointClient(self._client, self.fate, f"worker-{trainer}", lambda: True, False)
        while True:
            try:
                world = await client.get("/v1/world", wire.World, after=order.generation - 1, wait=POLL)
                break
            except Retryable:
                await asyncio.sleep(REACH_DEADLINE)
        if world is None or world.generation != order.generation:
            raise Stale(f"generation {order.generation} is over")
        seat = world.seats[order.rank]
        store = self._store_of(crash_points.Process(f"worker-{trainer}"))
        return LivingWorker(
            live, lambda what: self.fate.point(f"worker-{trainer}: {what}"), self._job, client, store, world, seat, self._rings,
            self._count,
        )  # fmt: skip


class ChangeSimulation(Simulation):
    """`orders`: what is done at a virtual time. `strikes`: what is killed before a point, by its number. `again`: messages that
    arrive once more, in the world behind the one that they were sent in. `troubles`: of calls on their way."""

    def __init__(
        self, job: JobConfig, folder: Path, orders: Sequence[Order], strikes: Mapping[int, Victims],
        again: Collection[int] = (), troubles: Sequence[Rule] = (), stop_at: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(job, folder, {}, stop_at)
        self.fate, self.troubles = PointFate(strikes, self.kill, again), Troubles(troubles)
        self.ledger = Ledger()
        self.members = LivingMembers(job, self._client, self._store_of)
        self.members.fate = self.fate
        self._orders = orders
        self.generations: list[int] = []
        self.first: Incarnation | None = None  # of two coordinators
        self._keep: tuple[Collection[str], float] = (), 0.0  # the members that reach it alone, until a time
        self.repeated: list[asyncio.Task[str]] = []  # how messages that arrive again were answered

    def kill(self, victim: str) -> None:
        if victim in RIVALS:
            self._start_second(*RIVALS[victim])
        elif victim != "coordinator":
            self.members.kill_one(victim)
        elif self.life is not None:
            self.life.kill()

    def _start_second(self, keep: Collection[str], seconds: float) -> None:
        """The first one goes on, and finds itself fenced once it writes. `keep`: members that reach it alone for so long."""
        loop = asyncio.get_running_loop()
        if self.life is not None and self.life.process.alive and self.first is None:
            self.first, self._keep = self.life, (keep, loop.time() + seconds)
            loop.call_later(BESIDE, self.first.kill)
            self.life = self._start()

    async def carry(self, caller: str, call: Call, send: Callable[[], Awaitable[T]]) -> T:
        method, path = call.route
        return await self.troubles.send(method, path, caller, send)

    def answered(self, life: Incarnation, caller: str, call: Call, answer: web.Response) -> None:
        self.ledger.hear(life, caller, call, answer)
        self.troubles.answered(call.route[1])

    def life_for(self, caller: str) -> Incarnation | None:
        (keep, until), first = self._keep, self.first
        kept = first is not None and first.process.alive and caller in keep
        return first if kept and asyncio.get_running_loop().time() < until else self.life

    async def _led(self) -> asyncio.Future[wire.Finished]:
        """The first of two coordinators may end the job before any member has reached the second, or make the next world before
        it: then the pod of the second one starts again."""
        while True:
            work = await super()._led()
            if self.life is not None and work is self.life.work:
                if work.cancelled() or not isinstance(work.exception(), Stale):
                    return work
                await asyncio.sleep(AWAY)
                self.life = self._start()
                continue
            if not work.cancelled() and work.exception() is None:
                self.life, second = self.first, self.life
                assert second is not None
                second.kill()
                return work
            assert work.cancelled() or isinstance(work.exception(), Stale)

    def send_again(self, call: Call) -> None:
        self.repeated.append(asyncio.create_task(self._send_again(call, self.generation)))

    @property
    def generation(self) -> int:
        return self.life.run.generation if self.life is not None else 0

    async def _send_again(self, call: Call, generation: int) -> str:
        while self.life is None or self.generation <= generation:  # noqa: ASYNC110  virtual time
            await asyncio.sleep(REACH_DEADLINE)
        with suppress(Retryable):
            return f"{call.route[1]} {(await self.life.answer(call)).status}"
        return "no answer"

    @property
    def state(self) -> JobState:
        assert self.life is not None
        return self.life.run

    async def play(self) -> wire.JobReport:
        self.began = {}
        orders = asyncio.create_task(self._give_orders())
        try:
            return await super().play()
        finally:
            for task in (orders, *self.repeated):
                task.cancel()
            self.troubles.close()
            self.members.kill()

    async def _give_orders(self) -> None:
        now = asyncio.get_running_loop().time
        for at, order in self._orders:
            await asyncio.sleep(max(0.0, at - now()))
            self.began[at] = len(self.fate.points)
            order(self)
