"""Waves: no task starts before every task of the waves before has ended on all replicas, and the gradient is the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import UNSET
from msgspec.structs import replace

from coxswain.layout import Layout
from coxswain.plan.values import Operation, StageOperations, Task
from coxswain_train.engine import engine
from coxswain_train.engine.step import Part, TaskRunner
from tests.distributed import training
from tests.distributed.plans import Plan, ring_slices
from tests.distributed.ranks import run_ranks
from tests.distributed.reference import Stream
from tests.distributed.test_layouts import MODEL
from tests.distributed.threads import ThreadWorld, run_threads
from tests.layouts import layout_of

STREAM = Stream(lengths=(40, 3, 29, 7, 16), vocabulary=training.VOCABULARY)
FLAT = layout_of(*[[(1, 3)]] * 3)
DEEP = layout_of(*[[(1, 1), (1, 3)]] * 3)


def _task(index: int, wave: int, *members: int) -> Task:
    slices = ring_slices(index, STREAM.lengths[index], members)
    if len(members) == 1:
        slices = (replace(slices[0], stop=STREAM.lengths[index]),)
    return Task(index, "ring" if len(members) > 1 else "pack", members, slices, wave=wave or UNSET)


# Replica 2 has nothing in the first wave, replica 0 nothing in the last two.
TASKS = (_task(0, 0, 0, 1), _task(1, 0, 0), _task(2, 1, 1, 2), _task(3, 2, 1), _task(4, 3, 2))


def plan_of(layout: Layout, tasks: tuple[Task, ...] = TASKS) -> Plan:
    """Every stage runs one task after another."""
    return tasks, tuple(
        StageOperations(r, s, tuple(Operation(k, t.index) for t in tasks if r in t.replicas for k in ("F", "B")))
        for r, replica in enumerate(layout.replicas)
        for s in range(len(replica.stages))
    )


@dataclass
class Watch:
    """What ranks do, in order. `seen`: the ranks that are at a barrier, or in a task of a later wave than the first."""

    notes: list[tuple[str, int, int]] = field(default_factory=list)  # what, wave, rank
    seen: set[int] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, what: str, wave: int, rank: int) -> None:
        with self.changed:
            self.notes.append((what, wave, rank))
            if what == "barrier" or wave:
                self.seen.add(rank)
            self.changed.notify_all()

    def await_others(self, ranks: set[int]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: ranks <= self.seen, timeout=60)


def watched(monkeypatch: pytest.MonkeyPatch, layout: Layout) -> Watch:
    """Replica 0 ends its last task of the first wave only once the others have gone as far as they can without it."""
    watch, ranks = Watch(), layout.ranks()
    slow = {s.rank for s in ranks if s.replica == 0}

    class Runner(TaskRunner):
        def forward(self, part: Part, received: torch.Tensor | None = None) -> Any:
            watch.note("begin", part.task.wave or 0, self._replica)
            return super().forward(part, received)

        def backward(self, part: Part, received: torch.Tensor | None = None) -> Any:
            if part.task.index == 1:
                watch.await_others({s.rank for s in ranks} - slow)
            found = super().backward(part, received)
            watch.note("end", part.task.wave or 0, self._replica)
            return found

    monkeypatch.setattr(engine, "TaskRunner", Runner)
    return watch


@dataclass
class WatchedWorld:
    """A world whose barriers are noted."""

    world: ThreadWorld
    watch: Watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)

    def barrier(self) -> None:
        self.watch.note("barrier", 0, self.world.rank)
        self.world.barrier()


def gradient(world: ThreadWorld, layout: Layout, plan: Plan, wrap: Callable[[ThreadWorld], Any]) -> np.ndarray:
    made = training.engine_of(wrap(world), torch.float64, MODEL, layout=layout)
    made.initialise(training.SEED)
    made.compute(training.work_of(STREAM, 0, plan, made.seat.replica, made.seat.stage))
    found: np.ndarray = made.optimizer.reduce().numpy()
    return found


@pytest.mark.parametrize("layout", [FLAT, DEEP], ids=["one stage", "two stages"])
def test_a_task_starts_on_no_replica_before_the_waves_before_have_ended_on_all(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watched(monkeypatch, layout)
    run_threads(len(layout.ranks()), gradient, layout, plan_of(layout), lambda world: WatchedWorld(world, watch))
    moves = [(wave, what) for what, wave, _ in watch.notes if what != "barrier"]
    assert {wave for wave, _ in moves} == {0, 1, 2, 3}
    for wave in (1, 2, 3):
        assert moves.index((wave, "begin")) > max(at for at, move in enumerate(moves) if move == (wave - 1, "end"))


@pytest.mark.parametrize("layout", [FLAT, DEEP], ids=["one stage", "two stages"])
def test_a_plan_in_waves_gives_the_gradient_of_the_same_plan_without_them_to_the_last_bit(layout: Layout) -> None:
    plans = plan_of(layout), plan_of(layout, tuple(replace(task, wave=UNSET) for task in TASKS))
    one, other = (run_threads(len(layout.ranks()), gradient, layout, plan, lambda world: world) for plan in plans)
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert max(float(np.abs(part).max()) for part in one) > 0.01


def test_waves_train_on_processes_as_the_same_plan_without_them() -> None:
    plans = [plan_of(FLAT), plan_of(FLAT, tuple(replace(task, wave=UNSET) for task in TASKS))]
    one, other = (run_ranks(3, training.train, torch.float64, STREAM, [plan] * 3, MODEL, FLAT) for plan in plans)
    for (weights, losses), (expected, expected_losses) in zip(one, other, strict=True):
        assert losses == expected_losses
        assert all(np.array_equal(weights[name], expected[name]) for name in expected)
