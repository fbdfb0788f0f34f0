"""Outbox and plan feed in an event loop (for threads: `coxswain_link.outbox`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from coxswain import wire
from coxswain.errors import Retryable, Stale
from coxswain_link.http_client import AsyncClient, JobEnded
from coxswain_link.outbox import Message, MessageLog

REACH_DEADLINE = 0.25
ATTEMPT = 10.0  # seconds in which a message is repeated before its coordinator counts as unreachable
POLL = 5.0


class Outbox:
    """An outbox in an event loop: the same message log, sent by a task."""

    def __init__(self, client: AsyncClient, generation: int, rank: int = -1) -> None:
        self._client, self._beat = client, wire.Heartbeat(generation, rank, begun=-1)
        self._log, self._new = MessageLog(), asyncio.Event()
        self.reachable = True
        self.fault: Exception | None = None

    @property
    def end(self) -> int | None:
        return self._log.end

    def mark_unreachable(self) -> None:
        """A heartbeat looks for a coordinator at once."""
        self.reachable = False
        self._new.set()

    def begin(self, step: int) -> None:
        self._beat = replace(self._beat, begun=step)

    def put(self, path: str, step: int, body: Any) -> None:
        self._log.put(Message(path, step, body))
        self._new.set()

    async def flush(self, saved: int) -> None:
        while self._log.waiting or self._log.saved < saved:
            if self.fault:
                raise self.fault
            await asyncio.sleep(REACH_DEADLINE)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        answered = loop.time()
        while self.fault is None:
            message = self._log.next()
            if message is None:
                self._new.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._new.wait(), 1.0)
                message = self._log.next()
            path, body = (message.path, message.body) if message else ("/v1/beats", self._beat)
            try:
                received = await self._client.post(path, body, wire.Ack, generation=self._beat.generation)
                self._log.acknowledge(message, received)
                answered, self.reachable = loop.time(), True
            except Retryable:
                self.reachable = self.reachable and loop.time() < answered + ATTEMPT
                await asyncio.sleep(REACH_DEADLINE)
            except (Stale, JobEnded) as over:
                self.fault = over


class Feed:
    """Fetches the committed plans ahead."""

    def __init__(self, client: AsyncClient, world: wire.World) -> None:
        self._client, self._generation, self._next = client, world.generation, world.first_step
        self.plans: dict[int, wire.StepPlan] = {}

    async def run(self, deliver: Callable[[wire.StepPlan], None] = lambda _: None) -> None:
        while True:
            try:
                query = {"from": self._next, "wait": POLL}
                found = await self._client.get("/v1/plans", wire.StepPlans, generation=self._generation, **query)
            except Retryable:
                await asyncio.sleep(REACH_DEADLINE)
                continue
            except (Stale, JobEnded):
                return
            for plan in found.plans if found else ():
                self.plans[plan.step] = plan
                self._next = plan.step + 1
                deliver(plan)
