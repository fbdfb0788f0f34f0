"""A coordinator's state and driver without sockets, in virtual time; a test sends what members would send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from coxswain import wire
from coxswain.config import CheckpointConfig, JobConfig
from coxswain.digests import tokens_digest
from coxswain.layout import Device, Replica, Stage, uniform_layout
from coxswain.live import Held
from coxswain.planlog import Generation
from coxswain_coordinator.driver import Driver
from coxswain_coordinator.planning.placers import place_step
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_coordinator.state.job_state import JobState
from coxswain_link.metrics import build
from coxswain_link.store import Store
from tests.unit.coordinator_fakes import BLOCKS, block_of, make_job, report_of, store_of, tokens_of
from tests.unit.coordinator_samples import agents
from tests.unit.crash_simulation import InTurn
from tests.unit.test_coordinator_checkpoints import shard

ORPHAN = "shards/orphan.safetensors"
ONSET = 20  # the first slow step: later than a history of a detector is full


class HookedExecutor(InTurn):
    """Runs `before[name]` once, right before the store work of that name; that of `held[name]` waits for the event."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, Callable[[], Any]] = {}
        self.held: dict[str, asyncio.Event] = {}

    async def __call__(self, work, *args, **kwargs):
        self.before.pop(work.__name__, lambda: None)()
        if work.__name__ in self.held:
            await self.held[work.__name__].wait()
        return await super().__call__(work, *args, **kwargs)


class Lead:
    """One coordinator's state and driver; the test sends what members would send."""

    def __init__(self, job: JobConfig, author: str, store: Store | None = None) -> None:
        self.job, self.store = job, store or store_of(job)
        self.state = JobState(job, build("coordinator"), None, lambda: 0.0)
        self.state.store_executor = self.executor = HookedExecutor()
        self.driver = Driver(self.state, self.store, place_step, author)
        self.work: asyncio.Task[wire.Finished] = asyncio.create_task(self.driver.drive())

    def index(self) -> None:
        """The loader registers and indexes its shares."""
        self.state.register(wire.Register("loader", "loader-0", "pod", "one", "h", 7))
        for share in self.state.index_progress.shares:
            blocks = tuple(block_of(share.source, b) for b in range(BLOCKS))
            self.state.add_indexed(wire.Indexed(share, blocks, "tokenizer", 257))

    def arrive(self, **changes: Any) -> list[wire.Registered]:
        """Every trainer registers."""
        return [self.state.register(replace(agent, **changes)) for agent in agents(self.job.trainers)]

    async def world(self, generation: int = 1) -> None:
        """Waits until a world of this generation has committed plans."""
        await self.until(lambda: self.state.generation == generation and self.state.session.committed > 0)

    async def until(self, holds: Callable[[], Any]) -> None:
        assert await self.state.notifier.wait_until(holds, 60)

    async def close(self, *steps: int) -> None:
        """Every rank reports these steps, and constructors deliver their digests."""
        session = self.state.session
        for step in steps:
            plan = session.plans_from(step).plans[0]
            for seat in session.world.seats:
                self.state.add_report(report_of(plan, seat.rank, seat.replica))
            served = tuple((i, tokens_digest(tokens_of(s))) for i, s in enumerate(plan.sequences))
            self.state.add_delivered(wire.DeliveredDigests(plan.generation, step, served))
        await self.until(lambda: session.book.open > steps[-1])

    def save(self, step: int, *ranks: int, key: str = "", end: str = "") -> None:
        for rank in ranks:
            found = shard(key or f"{step}-{rank}")
            self.store.put(found.key, b"1234")
            self.state.add_saved(wire.ShardsSaved(self.state.generation, step, rank, 2, (found,), 0.1, end))

    async def saved(self, step: int, **shard: str) -> None:
        """The steps before this one end, both ranks save, and the manifest is made."""
        await self.close(*range(self.state.session.book.open, step))
        self.save(step, 0, 1, **shard)
        await self.until(lambda: self.state.manifest and self.state.manifest.step == step)

    def beat(self, *begun: int) -> None:
        """Each rank's heartbeat, with the last step that it has begun."""
        for rank, step in enumerate(begun):
            self.state.take_heartbeat(wire.Heartbeat(self.state.generation, rank, begun=step))

    def leave(self, code: int, *ranks: int) -> None:
        for rank in ranks or range(2):
            self.state.add_exit(wire.WorkerExit(self.state.generation, f"trainer-{rank}", 0, rank, code))

    def keys(self, prefix: str) -> list[str]:
        return [found.path for found in self.store.list(prefix)]


@asynccontextmanager
async def leading(job: JobConfig, author: str = "one", store: Store | None = None) -> AsyncIterator[Lead]:
    lead = Lead(job, author, store)
    try:
        yield lead
    finally:
        lead.work.cancel()
        await asyncio.gather(lead.work, return_exceptions=True)


@asynccontextmanager
async def training(job: JobConfig) -> AsyncIterator[Lead]:
    """A coordinator with its first world."""
    async with leading(job) as lead:
        lead.index()
        lead.arrive()
        await lead.world()
        yield lead


def small(folder, **changes: Any) -> JobConfig:
    """Eight steps: one segment of the plan log holds them, so no commit comes after the first."""
    checkpoint = CheckpointConfig(uri=f"file://{folder}/store", every_steps=3, keep_last=1)
    return make_job(folder, **{"stop_steps": 8, "checkpoint": checkpoint} | changes)


def newer_generation(store: Store, record) -> None:
    assert PlanLog(store).create_generation(replace(record, generation=record.generation + 1, author="rival"))


def takeover(store: Store, record) -> None:
    assert PlanLog(store).take_over(record.generation, "rival")


def beaten_to_a_takeover(lead: Lead, record: Generation, goes_on: bool) -> None:
    """A rival takes over between this coordinator's listing and its claim. `goes_on`: it then creates the next world."""
    listed = lead.store.list

    def lose() -> None:
        def stale(prefix: str = "") -> Any:
            lead.store.list = listed
            return []

        takeover(lead.store, record)
        if goes_on:
            newer_generation(lead.store, record)
        lead.store.list = stale

    lead.executor.before["take_over"] = lose


RIVALS = pytest.mark.parametrize("rival", [newer_generation, takeover])


def holds(
    lead: Lead, step: int, pending: str = "", *, copies: bool = False, generation: int = 0
) -> list[wire.Register]:
    """Agents whose one worker each has left the current world, a rank each."""
    generation = generation or lead.state.generation
    return [
        replace(a, left=generation, held=(Held(0, generation, i, step, pending, (1 - i,) if copies else ()),))
        for i, a in enumerate(agents(2))
    ]


def register(lead: Lead, *members: wire.Register) -> None:
    for member in members:
        lead.state.register(member)


async def begun(lead: Lead, generation: int) -> None:
    """Waits until the world of this generation has plans."""
    await lead.until(
        lambda: lead.work.done() or (lead.state.generation == generation and lead.state.session.open_plan())
    )
    assert not lead.work.done(), lead.work.exception()


async def saved_and_moved(lead: Lead, step: int, generation: int) -> None:
    """Two workers save at the boundary of a change, leave with what they hold, and the next world begins."""
    session = lead.state.session
    lead.save(step, 0, 1, end="Moved")
    await lead.until(lambda: session.lost)
    assert lead.state.manifest.step == step
    register(lead, *holds(lead, step))
    await begun(lead, generation)


def lose(lead: Lead, rank: int) -> None:
    lead.leave(-9, rank)


def served_of(plan: wire.StepPlan) -> wire.DeliveredDigests:
    served = tuple((i, tokens_digest(tokens_of(s))) for i, s in enumerate(plan.sequences))
    return wire.DeliveredDigests(plan.generation, plan.step, served)


async def in_the_second_world(lead: Lead) -> wire.StepPlan:
    """The plan of an open step of the first one."""
    await lead.close(0, 1)
    plan = lead.state.session.plans_from(2).plans[0]
    lead.state.mark_world_lost("the network broke")
    register(lead, *holds(lead, 2))
    await begun(lead, 2)
    return plan


def suspend(lead: Lead) -> None:
    lead.state.request_stop(wire.StopRequest("suspend"))


@asynccontextmanager
async def led_again(folder: Path, **changes: Any) -> AsyncIterator[Lead]:
    """A second coordinator of a job whose first one has ended after a world's first step."""
    async with training(small(folder)) as lead:
        await lead.close(0)
    async with leading(small(folder, **changes), "two") as lead:
        lead.index()
        yield lead


async def moved_to(lead: Lead, step: int) -> None:
    """All ranks get the directive, and their workers leave."""
    session = lead.state.session
    assert session.directive(step).end == "Moved"
    lead.state.notifier.notify()
    await lead.until(lambda: session.lost)
    held = [Held(seat.device.device, session.record.generation, seat.rank, step) for seat in session.world.seats]
    here = {seat.device.trainer: (h,) for seat, h in zip(session.world.seats, held, strict=True)}
    for member in lead.state.registry.of("trainer"):
        index = int(member.name[-1])
        lead.state.register(replace(member, left=session.record.generation, generation=0, held=here.get(index, ())))
    await begun(lead, session.record.generation + 1)


def one_replica() -> object:
    """Both devices as a pipeline."""
    layout = uniform_layout([Device(0, 0), Device(1, 0)], 2)
    stages = (Stage((Device(0, 0),), 0, 1), Stage((Device(1, 0),), 1, 2))
    return replace(layout, replicas=(Replica(stages),))


async def run_steps(lead: Lead, steps: int, factor: float = 1.0, seconds: float = 0.5) -> None:
    """Closes steps in which rank 1 computes so many times as long for its work as rank 0; ranks that are asked to probe do."""
    session = lead.state.session
    for step in range(session.book.open, session.book.open + steps):
        await lead.until(lambda step=step: session.directive(step))
        directive = session.directive(step)
        for seat in session.world.seats:
            mine = factor if seat.rank == 1 else 1.0
            work = sum(
                t.seconds * min(directive.plan.speeds[r] if directive.plan.speeds else 1.0 for r in t.replicas)
                for t in directive.plan.tasks
                if seat.replica in t.replicas
            )
            asked = session.part_of(directive, session.cut_of_rank(seat.rank), seat.rank).probe
            found = report_of(directive.plan, seat.rank, seat.replica)
            found = replace(found, compute_seconds=work * mine, seconds=seconds)
            lead.state.add_report(found if asked is UNSET else replace(found, probe_seconds=0.001 * mine))
        served = tuple((i, tokens_digest(tokens_of(s))) for i, s in enumerate(directive.plan.sequences))
        lead.state.add_delivered(wire.DeliveredDigests(directive.plan.generation, step, served))
        await lead.until(lambda step=step: session.book.open > step)
