"""The predicted peak of a device is within a tenth of what torch's allocator says."""

from __future__ import annotations

import itertools

import pytest
import torch

from coxswain.config import ModelConfig
from coxswain.cost.memory import Recompute, Workload, peaks
from coxswain.layout import Layout
from coxswain.models import parameter_specs
from coxswain.plan.values import Operation, Slice, StageOperations, Task
from coxswain_train.engine.engine import Engine
from coxswain_train.engine.memory import MemoryPolicy
from tests.distributed import training
from tests.distributed.live_bytes import peak_bytes
from tests.distributed.plans import Plan
from tests.distributed.reference import Stream
from tests.distributed.threads import ThreadWorld, run_threads
from tests.layouts import layout_of

SHAPES = {
    "many tokens": (ModelConfig(layers=4, hidden=64, heads=4, kv_heads=2, feed_forward=192), 512, 1024),
    "wide feed-forward": (ModelConfig(layers=2, hidden=128, heads=4, kv_heads=4, feed_forward=1024), 256, 512),
    "large tied head": (ModelConfig(layers=3, hidden=128, heads=4, kv_heads=1, feed_forward=256, tied_head=True), 4096, 2500),
    "norms of large heads": (
        ModelConfig(layers=4, hidden=64, heads=4, kv_heads=2, feed_forward=192, qk_norm=True, head_size=32), 512, 1024
    ),
    "mostly weights": (ModelConfig(layers=8, hidden=256, heads=8, kv_heads=2, feed_forward=768), 1024, 256),
}  # fmt: skip
MODES: tuple[Recompute, ...] = ("None", "Selective", "Full")


def two_packs(tokens: int) -> Plan:
    tasks = tuple(Task(i, "pack", (0,), (Slice(0, i, 0, tokens),)) for i in range(2))
    return tasks, (StageOperations(0, 0, tuple(Operation(k, i) for i in range(2) for k in ("F", "B"))),)  # type: ignore[arg-type]


def measured(world: ThreadWorld, model: ModelConfig, rows: int, tokens: int, work: Workload, dtype: torch.dtype) -> int:
    """The most bytes at one time in a step of two packs, with weights and the optimizer's state."""
    layout, stream = layout_of([(1, model.layers)]), Stream(lengths=(tokens, tokens), vocabulary=rows)
    engine = Engine(
        model, rows, training.OPTIMIZER, 10, layout, layout.ranks()[0], world, torch.device("cpu"), dtype,  # type: ignore[arg-type]
        memory=MemoryPolicy(work.recompute),
    )  # fmt: skip
    engine.initialise(training.SEED)
    step = training.work_of(stream, 0, two_packs(tokens), 0)
    held = [*engine.model.weights().values(), *(x for boxes in engine.boxes().values() for x in boxes.values())]
    return sum(x.nbytes for x in held) + peak_bytes(lambda: engine.compute(step))


@pytest.mark.parametrize(("model", "rows", "tokens"), SHAPES.values(), ids=SHAPES.keys())
def test_the_predicted_peak_is_within_a_tenth_of_the_measured_one(model: ModelConfig, rows: int, tokens: int) -> None:
    layout: Layout = layout_of([(1, model.layers)])
    for recompute, dtype in itertools.product(MODES, (torch.float32, torch.bfloat16)):
        work = Workload(dtype.itemsize, tokens, recompute)
        predicted = peaks(model, parameter_specs(model, rows), layout, work)[0, 0, 0].total
        (found,) = run_threads(1, measured, model, rows, tokens, work, dtype)
        assert predicted == pytest.approx(found, rel=0.1), (recompute, dtype)
