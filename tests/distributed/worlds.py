"""Successive worlds of the same workers: each is a thread of ranks, its `LiveState` goes from world to world."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from coxswain.config import ModelConfig, OptimizerConfig
from coxswain.copies import wards_of
from coxswain.layout import Device, Layout, Replica, Stage
from coxswain.live import Held, Holder, LiveSource
from coxswain_train.engine.engine import Engine
from coxswain_train.live.digests import content_of
from coxswain_train.live.state import Cut, LiveState
from coxswain_train.live.takeover import Moved
from tests.distributed import training
from tests.distributed.plans import random_plan
from tests.distributed.reference import Stream
from tests.distributed.threads import run_threads

Run = Callable[..., list[Any]]


@dataclass
class Job:
    """What all its worlds have in common. `workers`: by device.

    `losses`: by step, as ranks know them from the vote; `parts`: what each rank has to report.
    """

    model: ModelConfig
    stream: Stream
    dtype: torch.dtype = torch.float64
    optimizer: OptimizerConfig = training.OPTIMIZER
    copies: bool = False
    seed: int = 0
    workers: dict[Device, LiveState] = field(default_factory=dict)
    layouts: list[Layout] = field(default_factory=list)  # by generation
    losses: dict[int, float] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)
    parts: dict[tuple[int, Device], float] = field(default_factory=dict)

    def form(self, layout: Layout) -> int:
        """The next generation, whose devices may be new."""
        for seat in layout.ranks():
            self.workers.setdefault(seat.device, LiveState())
        self.layouts.append(layout)
        return len(self.layouts) - 1

    def engine(self, world: Any, generation: int) -> Engine:
        layout = self.layouts[generation]
        seat = layout.ranks()[world.rank]
        wards = wards_of(layout.ranks()) if self.copies else ()
        return training.engine_of(
            world, self.dtype, self.model, self.optimizer, 20, layout,
            live=self.workers[seat.device], generation=generation, wards=wards,
        )  # fmt: skip

    def source(self, layout: Layout) -> LiveSource:
        """Of the newest generation of which every shard is held, for a world of this layout."""
        held = [
            (rank, each)
            for rank, seat in enumerate(layout.ranks())
            if seat.device in self.workers
            for each in self.workers[seat.device].all_held(seat.device.device)
        ]
        for generation in range(len(self.layouts) - 1, -1, -1):
            former = self.layouts[generation]
            mine = [(rank, each) for rank, each in held if each.generation == generation]
            holders = tuple(holder for rank, each in mine for holder in _holders(rank, each))
            if {h.former for h in holders} == set(range(len(former.ranks()))):
                return LiveSource(generation, former, _step([each for _, each in mine]), holders)
        raise LookupError("no generation is held whole")

    def plan_of(self, step: int, layout: Layout) -> Any:
        return random_plan(self.stream.lengths, len(layout.replicas), self.seed + step, rings=0.0, layout=layout)

    def train(self, engine: Engine, layout: Layout, steps: Sequence[int]) -> None:
        for step in steps:
            plan = self.plan_of(step, layout)
            work = training.work_of(self.stream, step, plan, engine.seat.replica, engine.seat.stage)
            self.parts[step, engine.seat.device] = engine.step(work, time.perf_counter()).loss_sum
            self.note(engine)

    def note(self, engine: Engine) -> None:
        """The loss of the last step, as this rank knows it from the vote. All ranks must know the same."""
        cut = engine.live.current
        assert cut is not None
        if cut.agreed is not None:
            loss = cut.agreed.loss_sum / self.stream.labels(cut.step - 1)
            assert self.losses.setdefault(cut.step - 1, loss) == loss
            assert self.norms.setdefault(cut.step - 1, cut.agreed.norm) == cut.agreed.norm

    def cut(self, device: Device) -> Cut:
        found = self.workers[device].current
        assert found is not None
        return found

    def reported(self) -> dict[int, float]:
        """Losses by the parts of all ranks."""
        steps = {step for step, _ in self.parts}
        return {s: sum(p for (t, _), p in self.parts.items() if t == s) / self.stream.labels(s) for s in steps}

    def contents(self) -> int:
        """Of the state that is held as own shards."""
        owned = (live.own.boxes() for live in self.workers.values() if live.current is not None)
        return sum(content_of(boxes) for boxes in owned) % (1 << 64)


def numbered(layout: Layout, each: int = 1) -> Layout:
    """On devices in the order of ranks, `each` to a trainer."""
    return on(layout, [Device(rank // each, rank % each) for rank in range(len(layout.ranks()))])


def on(layout: Layout, devices: Sequence[Device]) -> Layout:
    """On these devices, in the order of ranks."""
    free = iter(devices)
    replicas = (
        Replica(tuple(Stage(tuple(next(free) for _ in stage.devices), stage.start, stage.stop) for stage in r.stages))
        for r in layout.replicas
    )
    return Layout(tuple(replicas))


def _holders(rank: int, held: Held) -> list[Holder]:
    return [Holder(held.rank, rank), *(Holder(copy, rank, copy=True) for copy in held.copies)]


def _step(held: Sequence[Held]) -> int:
    """The newest that all have or can finish."""
    newest = max(each.step + (each.pending == "Agreed") for each in held)
    assert all(each.step == newest or (each.step == newest - 1 and each.pending) for each in held), held
    return newest


def begin(world: Any, job: Job, generation: int, steps: Sequence[int]) -> None:
    engine = job.engine(world, generation)
    engine.initialise(training.SEED)
    job.train(engine, job.layouts[generation], steps)


def go_on(world: Any, job: Job, generation: int, source: LiveSource, stop: int) -> Engine:
    """Takes over, then trains up to step `stop`."""
    engine = job.engine(world, generation)
    engine.take_over(source)
    if (finished := engine.live.unreported) is not None:
        job.parts[finished.step, engine.seat.device] = finished.loss_sum
    job.note(engine)
    job.train(engine, job.layouts[generation], range(source.step, stop))
    return engine


def run_through(job: Job, layouts: Mapping[int, Layout], steps: int) -> list[Moved]:
    """Trains in one layout after the other, each from its step on. What each change moved."""
    starts, moved = sorted(layouts), []
    for start, stop in zip(starts, [*starts[1:], steps], strict=True):
        layout = layouts[start]
        if start == 0:
            run_threads(len(layout.ranks()), begin, job, job.form(layout), range(stop))
            continue
        source, generation = job.source(layout), job.form(layout)
        moved.append(run_threads(len(layout.ranks()), go_on, job, generation, source, stop)[0].moved)
    return moved
