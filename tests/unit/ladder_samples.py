"""A job under the ladder, in virtual steps, and planners that offer it what a test needs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from coxswain.config import StragglerConfig
from coxswain.ladder.values import Option, Options
from coxswain.layout import Device, Layout, Replica, Stage
from coxswain.stragglers.values import Cause
from coxswain_coordinator.capacity import devices_of
from coxswain_coordinator.stragglers.figures import Measured
from coxswain_coordinator.stragglers.ladder import Ladder
from coxswain_coordinator.stragglers.words import Straggler
from coxswain_coordinator.world.formation import at_checkpoint, next_generation, world_of
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_samples import agents

SECONDS = 10.0  # of a step while trainer 1 is slow
SLOW = Device(1, 0)


def offered(job, vocabulary, layout: Layout, speeds, least_gain) -> Options:
    """While one is slow, a layout with it on standby is a fifth faster; while none is, that with all devices."""
    if not speeds:
        whole = next_generation(job, 1, "me", agents(2), (), at_checkpoint(job, None)).layout
        return Options(layout, {}, 8.0, 6.0, (Option("Groups", whole, 6.0, 5.0),) if layout.standby else ())
    aside = replace(layout, replicas=layout.replicas[:1], standby=(SLOW,))
    return Options(layout, dict(speeds), SECONDS, 6.0, () if layout.standby else (Option("Groups", aside, 8.0, 5.0),))


def slower_without(job, vocabulary, layout: Layout, speeds, least_gain) -> Options:
    """Two replicas compute in 10 what the one without the slow device computes in 10.5."""
    aside = Layout(layout.replicas[:1], (SLOW,))
    return Options(layout, dict(speeds), 10.0, 6.0, () if layout.standby else (Option("Groups", aside, 10.5, 5.0),))


@dataclass
class Job:
    """Trainers with a device each; changes of layout come at once."""

    folder: Any
    action: str = "Migrate"
    planner: Any = offered
    trainers: int = 2
    joins: bool = False
    factor: float = 2.0
    slow: bool = True
    step: int = 0
    onset: int = 0
    lengths: tuple[int, ...] = ()  # of each step's sequences
    besides: tuple[float, float] = (0.0, 0.0)  # of a step's seconds, without and with the slow device
    generation: int = 0
    asked: list[tuple[Layout, str]] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    held: asyncio.Event | None = None
    adopted: Layout | None = None  # of the world that is there as the coordinator starts

    def __post_init__(self) -> None:
        batch = replace(make_job(self.folder).batch, max_sequence_tokens=128)
        stragglers = StragglerConfig(action=self.action)
        self.job = make_job(self.folder, stragglers=stragglers, batch=batch, trainers=self.trainers)
        self.inputs: list[tuple[Any, ...]] = []  # of plans: vocabulary, layout, speeds, least gain
        self.ladder = Ladder(
            self.job, lambda *request: self.asked.append(request), lambda *event: self.events.append(event),
            self.beside, self.planner, lambda: self.joins,
        )  # fmt: skip
        self.enter(self.adopted)

    @property
    def plans(self) -> int:
        return len(self.inputs)

    async def beside(self, planner, *args):
        self.inputs.append(args[1:])
        if self.held:
            await self.held.wait()
        return planner(*args)

    def enter(self, layout: Layout | None = None, members=None, size: int | None = None) -> None:
        """The next world begins at the next step."""
        self.generation += 1
        members = members or agents(self.trainers)
        start = at_checkpoint(self.job, None)
        record = next_generation(self.job, self.generation, "me", members, (), start, layout, size)
        self.record = replace(record, first_step=self.step)
        nodes = [f"node-{index}" for index in range(len(record.trainers))]
        self.ladder.enter(self.record, world_of(self.record, members, 320), nodes)

    def lose(self, *lost: int, layout: Layout | None = None) -> None:
        self.ladder.leave()
        self.enter(layout, [agent for i, agent in enumerate(agents(self.trainers)) if i not in lost])

    async def run(self, steps: int, changes: bool = True) -> None:
        for _ in range(steps):
            working = {seat.device for seat in self.record.layout.ranks()}
            found = [straggler(self.factor, self.onset)] if self.slow and SLOW in working else []
            seconds, beside = SECONDS if found else 8.0, self.besides[bool(found)]
            self.ladder.stepped(Measured(self.step, seconds, beside, self.lengths), found)
            self.step += 1
            for _ in range(4):
                await asyncio.sleep(0)
            if changes and self.asked and self.asked[-1][0] != self.record.layout:
                self.ladder.leave()
                layout = self.asked[-1][0]
                here = {device.trainer for device in devices_of(layout)}
                self.enter(layout, [agent for i, agent in enumerate(agents(self.trainers)) if i in here])


def straggler(slowdown: float, since: int) -> Straggler:
    return Straggler("trainer-1", 0, "node-1", slowdown, since, 1.0, Cause.DEVICE, 1, 0.5)


LEFT = Layout((Replica((Stage((Device(0, 0),), 0, 1), Stage((Device(2, 0),), 1, 2))),))
LOST = Device(1, 0)


def left(job, vocabulary, layout: Layout, speeds, least_gain) -> Options:
    """Of trainers 0 and 2 as a pipeline: a tenth of a percent faster. Nothing else is."""
    faster = layout != LEFT and devices_of(layout) == devices_of(LEFT)
    return Options(layout, dict(speeds), 8.0, 6.0, (Option("Groups", LEFT, 7.992, 0.04),) if faster else ())


def nothing(job, vocabulary, layout, speeds, least_gain) -> Options:
    """No other layout is faster."""
    return Options(layout, dict(speeds), SECONDS, 6.0)


def as_planned(job, vocabulary, options, steps) -> Options:
    """A judge that believes the planner: on steps of few sequences a slow device would rather stay, with less to do."""
    return options


async def at_once(planner, *args):
    return planner(*args)
