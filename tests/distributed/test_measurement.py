"""What a rank measures of itself, in virtual time: each of its operators takes as long as its output is large, times how slow
the rank is; a message is not there before it was sent."""

from __future__ import annotations

import queue
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from coxswain.layout import Layout
from coxswain_train.engine.engine import StepResult
from coxswain_train.parallel.clock import DeviceClock
from tests.distributed import training
from tests.distributed.test_layouts import MODEL
from tests.distributed.test_waves import DEEP, FLAT, STREAM, plan_of
from tests.distributed.threads import Mail, ThreadWorld, run_threads

SLOW = 1  # a rank that is in rings with all others


class VirtualClock(DeviceClock):
    """Of one rank."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def mark(self) -> float:
        return self.now


class Operators(TorchDispatchMode):
    """Charges the clock of a rank for each operator of its thread."""

    def __init__(self, clock: VirtualClock, factor: float) -> None:
        super().__init__()
        self.clock, self.factor = clock, factor

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        size = found.numel() if isinstance(found, Tensor) else 0
        self.clock.now += self.factor * (1 + size) * 1e-6
        return found


class DatedMail(Mail):
    """Each message carries when it was sent; its receiver is not earlier than that."""

    def __init__(self, clocks: Sequence[VirtualClock]) -> None:
        super().__init__()
        self.clocks = clocks
        self.dates: dict[tuple[int, int, int], queue.Queue[float]] = defaultdict(queue.Queue)

    def send(self, sender: int, receiver: int, tensor: Tensor, lane: int = -1) -> None:
        self.dates[sender, receiver, lane].put(self.clocks[sender].now)
        super().send(sender, receiver, tensor, lane)

    def receive(self, sender: int, receiver: int, lane: int = -1) -> Tensor:
        found = super().receive(sender, receiver, lane)
        clock = self.clocks[receiver]
        clock.now = max(clock.now, self.dates[sender, receiver, lane].get_nowait())
        return found


class CostlyDepartures:
    """Of gradients: the host of a rank takes longer to send each bucket."""

    def __init__(self, world: ThreadWorld) -> None:
        self._send = world.all_to_all

    def __call__(self, *args: Any) -> Any:
        torch.zeros(1000)
        return self._send(*args)


def stepped(world: ThreadWorld, mail: DatedMail, layout: Layout, slow: float, costly: bool) -> tuple[StepResult, float]:
    """What the rank says of its second step, and the seconds of its virtual time in that step."""
    clock = mail.clocks[world.rank]
    world.mail, world.clock = mail, clock
    if costly:
        world.all_to_all = CostlyDepartures(world)  # type: ignore[method-assign]
    engine = training.engine_of(world, torch.float64, MODEL, layout=layout)  # type: ignore[arg-type]
    engine.initialise(training.SEED)
    with Operators(clock, slow if world.rank == SLOW else 1.0):
        for step in range(2):
            began = clock.now
            work = training.work_of(STREAM, step, plan_of(layout), engine.seat.replica, engine.seat.stage)
            result = engine.step(work, 0.0)
    return result, clock.now - began


def results(layout: Layout, slow: float, costly: bool = False) -> list[tuple[StepResult, float]]:
    mail = DatedMail([VirtualClock() for _ in layout.ranks()])
    return run_threads(len(layout.ranks()), stepped, mail, layout, slow, costly)


def measured(layout: Layout, slow: float, costly: bool = False) -> list[tuple[float, float]]:
    """By rank, seconds that it says it computed, and of the step."""
    return [(result.compute_seconds, seconds) for result, seconds in results(layout, slow, costly)]


@pytest.mark.parametrize("layout", [FLAT, DEEP], ids=["rings and waves", "rings, waves and stages"])
def test_a_slow_member_of_a_ring_changes_what_no_peer_says_it_computed(layout: Layout) -> None:
    even, uneven = measured(layout, 1.0), measured(layout, 2.0)
    for rank, ((before, _), (after, seconds)) in enumerate(zip(even, uneven, strict=True)):
        assert after == pytest.approx(before * (2 if rank == SLOW else 1), rel=0.03)
        assert 0 < after < seconds
    assert any(after - before > 0.2 * before for (_, before), (_, after) in zip(even, uneven, strict=True))


def test_the_reduction_and_update_of_a_step_are_none_of_its_operations() -> None:
    for result, seconds in results(DEEP, 1.0):
        operations = result.timings[-1].stop - result.timings[0].start
        assert 0.05 * seconds < result.reduce_seconds <= seconds - operations


def test_gradients_that_leave_within_the_last_backward_are_no_work_of_the_plan() -> None:
    """They are so many whatever the plan gives to a rank."""
    cheap, costly = measured(FLAT, 1.0), measured(FLAT, 1.0, costly=True)
    assert all(after > before for (_, before), (_, after) in zip(cheap, costly, strict=True))
    assert [c for c, _ in costly] == pytest.approx([c for c, _ in cheap], rel=1e-9)
