"""Recompute and offload save memory and change no bit of a gradient; ranks are threads."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from coxswain_train.engine.memory import MemoryPolicy, Recompute
from coxswain_train.engine.offload import HostCopies
from coxswain_train.engine.step import TaskRunner, run_operations
from tests.distributed import training
from tests.distributed.plans import Plan, random_plan
from tests.distributed.reference import Stream
from tests.distributed.threads import ThreadWorld, run_threads

MODEL = replace(training.MODEL, layers=3)
STREAM = Stream(lengths=(5, 16, 29, 41), vocabulary=training.VOCABULARY)
MODES: tuple[Recompute, ...] = ("None", "Selective", "Full")


@dataclass
class Counting(HostCopies):
    """Notes how many bytes go to host memory and come back."""

    saved: list[int] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)

    def save(self, x: Tensor) -> Tensor:
        self.saved.append(x.nbytes)
        return super().save(x)

    def load(self, host: Tensor) -> tuple[Tensor, None]:
        self.loaded.append(host.nbytes)
        return host, None


def gradients(
    world: ThreadWorld, dtype: torch.dtype, plan: Plan, recompute: Recompute, ratio: float, stream: Stream = STREAM
) -> tuple[dict[str, Tensor], Counting, int]:
    """This rank's gradients of one step by parameter, the copies to host memory, and the rings' transfers."""
    copies = Counting()
    engine = training.engine_of(world, dtype, MODEL)  # type: ignore[arg-type]
    engine.initialise(training.SEED)
    work = training.work_of(stream, 0, plan, world.rank)
    memory = MemoryPolicy(recompute, lambda _: ratio, copies)
    runner = TaskRunner(engine.model, work.batch, 1 / work.labels, world.rank, world.exchange, memory)
    run_operations(runner, work.parts, work.operations, lambda: None, world.clock)
    return {n: w.grad for n, w in engine.model.weights().items() if w.grad is not None}, copies, len(world.clock.waits)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", [6, 7])
def test_no_way_to_save_memory_changes_a_bit_of_a_gradient_of_packs_or_rings(dtype: torch.dtype, seed: int) -> None:
    plan = random_plan(STREAM.lengths, 3, seed, rings=0.5)
    kinds = {task.kind for task in plan[0]}
    assert kinds == {"pack", "ring"}
    expected = run_threads(3, gradients, dtype, plan, "None", 0.0)
    for recompute, ratio in itertools.product(MODES, (0.0, 0.3, 1.0)):
        found = run_threads(3, gradients, dtype, plan, recompute, ratio)
        for (mine, copies, _), (theirs, _, _) in zip(found, expected, strict=True):
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[name], theirs[name]) for name in mine), (recompute, ratio)
            goes = ratio == 1 or (ratio > 0 and recompute != "Full")  # of two equal inputs of layers none is 0.3
            assert bool(copies.saved) == (goes and bool(mine))
            assert sum(copies.loaded) >= sum(copies.saved)


@pytest.mark.parametrize(("recompute", "forwards"), [("None", 1), ("Selective", 1), ("Full", 2)])
def test_a_ring_repeats_its_forward_hops_in_backward_only_under_full_recompute(
    recompute: Recompute, forwards: int
) -> None:
    """A layer has a hop a member forward, and one more backward: the way home of the gradients."""
    stream = Stream(lengths=(64,), vocabulary=training.VOCABULARY)
    plan = random_plan(stream.lengths, 2, 1, rings=1.0)
    for _, _, waits in run_threads(2, gradients, torch.float32, plan, recompute, 0.0, stream):
        assert waits == MODEL.layers * (2 * forwards + 3)
