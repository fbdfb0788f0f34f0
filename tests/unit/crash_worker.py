"""A worker as a task: its state depends on every token; it saves shards and sums with its peers.

It continues without a coordinator and repeats its messages to the next one, as the real one does.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cache
from typing import Any, Literal

import msgspec
import numpy as np

from coxswain import digests, wire
from coxswain.config import JobConfig
from coxswain.errors import Retryable, Stale
from coxswain.layout import Seat
from coxswain.membership.values import Sequence
from coxswain_link.http_client import AsyncClient, JobEnded
from coxswain_link.store import Store
from coxswain_train.worker.directives import autonomous_directive, saved_step
from tests.unit.coordinator_fakes import tokens_of
from tests.unit.crash_outbox import POLL, REACH_DEADLINE, Feed, Outbox

STEP_SECONDS = 0.3125
SUSPEND_SECONDS = 10.0  # until a suspension is saved
ASSIGNMENT_SECONDS = 3.0  # for the agent's next assignment after a world broke


class PeerLost(Exception):
    """A rank of this world was killed or left it."""


class Ring:
    """The collectives of one world: a sum in which all ranks take part or none passes."""

    def __init__(self, ranks: int) -> None:
        self._ranks, self._parts = ranks, defaultdict[Hashable, dict[int, Any]](dict)
        self._change, self._broken = asyncio.Event(), False

    async def total(self, step: int, rank: int, part: int) -> int:
        return sum((await self.gather(step, rank, part)).values()) % (1 << 64)

    async def gather(self, what: Hashable, rank: int, mine: Any) -> dict[int, Any]:
        """What each rank gives, by rank."""
        parts = self._parts[what]
        parts[rank] = mine
        self._wake()
        while len(parts) < self._ranks:
            if self._broken:
                raise PeerLost
            await self._change.wait()
        return parts

    def leave(self) -> None:
        self._broken = True
        self._wake()

    def _wake(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()


class State(msgspec.Struct, frozen=True):
    """What training changes. `step`: the next one."""

    step: int
    values: tuple[float, ...]

    def after(self, step: int, total: int) -> State:
        assert step == self.step, f"step {step} would be applied to the state of step {self.step}"
        words = [(total >> 16 * i & 0xFFFF) / 65536 for i in range(4)]
        return State(step + 1, tuple(0.9 * v + 0.1 * w for v, w in zip(self.values, words, strict=True)))


FRESH = State(0, (1.0, 2.0, 3.0, 4.0))


@cache
def part_of(sequence: Sequence, place: int, start: int, stop: int) -> int:
    """This slice's part of the delivered digest."""
    return digests.delivered(place, np.arange(start, stop), tokens_of(sequence)[start:stop])


class Worker:
    """One rank in one world, until its agent cancels it, it is killed, or it exits."""

    def __init__(
        self, job: JobConfig, client: AsyncClient, store: Store, world: wire.World, seat: Seat, rings: dict[int, Ring],
        computed: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        self._job, self._client, self._store, self._world, self._seat = job, client, store, world, seat
        self._rings, self._computed = rings, computed
        self._mail, self._feed = Outbox(client, world.generation, seat.rank), Feed(client, world)
        self._ring: Ring | None = None

    async def run(self) -> int:
        """Runs and returns the exit code. Raises Killed when a write kills it."""
        helpers = [asyncio.create_task(self._mail.run()), asyncio.create_task(self._feed.run())]
        try:
            return await self._train()
        except (PeerLost, Stale, Retryable):
            await asyncio.sleep(ASSIGNMENT_SECONDS)  # the agent's next assignment cancels this
            return 1
        except JobEnded as ended:
            return ended.finished.exit_code
        finally:
            if self._ring:
                self._ring.leave()
            for helper in helpers:
                helper.cancel()

    async def _train(self) -> int:
        self._ring = await self._meet()
        state = await self._restore()
        step = self._world.first_step
        while True:
            directive = await self._directive(step)
            if directive.checkpoint:
                self._save(state, directive.end)
            if directive.end:
                with suppress(TimeoutError):
                    await asyncio.wait_for(
                        self._mail.flush(step), None if directive.end == "Completed" else SUSPEND_SECONDS
                    )
                return 0 if directive.end == "Completed" else 3
            self._mail.begin(step)
            state = await self._step(directive.plan, state)
            step += 1

    async def _meet(self) -> Ring:
        """Rank 0 publishes the rendezvous; a ring's port is its number."""
        g = self._world.generation
        if self._seat.rank == 0:
            ring, port = Ring(len(self._world.seats)), len(self._rings) + 1
            self._rings[port] = ring
            self._mail.put("/v1/rendezvous", self._world.first_step, wire.Rendezvous(g, "127.0.0.1", port))
            return ring
        while True:
            try:
                path = f"/v1/rendezvous?generation={g}&wait={POLL}"
                found = await self._client.get(path, wire.Rendezvous, generation=g)
            except Retryable:
                await asyncio.sleep(REACH_DEADLINE)
                continue
            if found is not None:
                return self._rings[found.port]

    async def _restore(self) -> State:
        if not self._world.checkpoint:
            return FRESH
        manifest = msgspec.json.decode(self._store.get(self._world.checkpoint), type=wire.CheckpointManifest)
        values: dict[int, float] = {}
        for shard in manifest.shards:
            data = self._store.get(shard.key)
            assert shard.key == key_of(data), f"{shard.key} is damaged"
            step, part = msgspec.json.decode(data, type=tuple[int, dict[int, float]])
            assert step == manifest.step
            values |= part
        return State(manifest.step, tuple(values[i] for i in range(4)))

    async def _directive(self, step: int) -> wire.StepDirective:
        while True:
            if self._mail.fault:
                raise self._mail.fault
            directive = await self._ask(step) if self._mail.reachable else None
            alone = not self._mail.reachable if directive is None else not directive.end and directive.plan is None
            if alone:
                every, saved = self._job.checkpoint.every_steps, saved_step(self._world)
                directive = autonomous_directive(step, self._feed.plans.get(step), every, saved, self._mail.end)
            if directive is not None:
                return directive
            await asyncio.sleep(REACH_DEADLINE)

    async def _ask(self, step: int) -> wire.StepDirective | None:
        try:
            query = {"step": step, "wait": POLL}
            return await self._client.get("/v1/steps", wire.StepDirective, generation=self._world.generation, **query)
        except Retryable:
            self._mail.mark_unreachable()
            return None

    async def _step(self, plan: wire.StepPlan, state: State) -> State:
        mine = [
            (plan.sequences[s.sequence], s) for t in plan.tasks for s in t.slices if s.replica == self._seat.replica
        ]
        part = sum(part_of(sequence, s.sequence, s.start, s.stop) for sequence, s in mine) % (1 << 64)
        total = await self._ring.total(plan.step, self._seat.rank, part)
        await asyncio.sleep(STEP_SECONDS)
        loss = state.values[0] * sum(s.stop - s.start for _, s in mine)
        after = state.after(plan.step, total)
        self._computed(self._seat.rank, plan.step)
        report = wire.StepReport(
            plan.generation, plan.step, self._seat.rank, loss, part, 1.0, 1e-3, STEP_SECONDS, STEP_SECONDS, 0.0, 0.0
        )
        self._mail.put("/v1/reports", plan.step, report)
        return after

    def _save(self, state: State, end: Literal["", "Completed", "Suspended"]) -> None:
        rank, ranks = self._seat.rank, len(self._world.seats)
        data = msgspec.json.encode((state.step, {i: v for i, v in enumerate(state.values) if i % ranks == rank}))
        key = key_of(data)
        if not self._store.create(key, data):
            self._store.put(key, data)
        shard = wire.Shard(key, len(data), (), ())
        self._mail.put(
            "/v1/saved",
            state.step,
            wire.ShardsSaved(self._world.generation, state.step, rank, ranks, (shard,), 0.1, end),
        )


def key_of(data: bytes) -> str:
    return f"shards/{hashlib.sha256(data).hexdigest()}.safetensors"
