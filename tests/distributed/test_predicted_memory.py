"""The predicted peak of a device is within a tenth of what torch's allocator says."""

from __future__ import annotations

import pytest
import torch

from coxswain.config import ModelConfig
from coxswain.cost.memory import Recompute, Workload, peaks
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

# Model, rows of its embedding, tokens of a task, bytes of a parameter.
SHAPES = {
    "many tokens": (ModelConfig(layers=4, hidden=32, heads=4, kv_heads=2, feed_forward=96), 64, 512, torch.float32),
    "bf16": (ModelConfig(layers=3, hidden=32, heads=2, kv_heads=1, feed_forward=96), 64, 256, torch.bfloat16),
    "norms of queries and keys": (
        ModelConfig(layers=3, hidden=32, heads=4, kv_heads=2, feed_forward=48, head_size=16, qk_norm=True), 64, 256, torch.float32
    ),
    "wide feed-forward": (ModelConfig(layers=2, hidden=32, heads=4, kv_heads=4, feed_forward=256), 64, 256, torch.float32),
    "large tied head": (
        ModelConfig(layers=3, hidden=32, heads=4, kv_heads=1, feed_forward=64, tied_head=True), 512, 1100, torch.float32
    ),
    "mostly weights": (ModelConfig(layers=6, hidden=128, heads=8, kv_heads=2, feed_forward=384), 256, 128, torch.float32),
    "mostly weights in bf16": (ModelConfig(layers=6, hidden=64, heads=2, kv_heads=1, feed_forward=192), 64, 64, torch.bfloat16),
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


@pytest.mark.parametrize(("model", "rows", "tokens", "dtype"), SHAPES.values(), ids=SHAPES.keys())
def test_the_predicted_peak_is_within_a_tenth_of_the_measured_one(
    model: ModelConfig, rows: int, tokens: int, dtype: torch.dtype
) -> None:
    layout = layout_of([(1, model.layers)])
    for recompute in MODES:
        work = Workload(dtype.itemsize, tokens, recompute)
        predicted = peaks(model, parameter_specs(model, rows), layout, work)[0, 0, 0].total
        (found,) = run_threads(1, measured, model, rows, tokens, work, dtype)
        assert predicted == pytest.approx(found, rel=0.1), recompute
