"""Steps on one CUDA device: bf16 beside fp32, ways to save memory, times, snapshots."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from coxswain.boxes import full_box
from coxswain.config import ModelConfig, OptimizerConfig
from coxswain_train.checkpoint.snapshots import snapshots_of
from coxswain_train.engine.engine import Engine, StepInput
from coxswain_train.engine.memory import MemoryPolicy, Recompute
from coxswain_train.engine.offload import CudaCopies
from coxswain_train.engine.step import Batch
from coxswain_train.parallel.clock import DeviceClock
from coxswain_train.parallel.process_groups import ProcessGroups, WorldAborter, leave_world
from tests.distributed import training
from tests.distributed.plans import Plan, random_plan
from tests.distributed.ranks import run_ranks
from tests.distributed.reference import Stream
from tests.distributed.threads import ThreadWorld, run_threads
from tests.layouts import layout_of

MODEL = ModelConfig(layers=4, hidden=256, heads=4, kv_heads=2, feed_forward=512)
STREAM = Stream(lengths=(100, 700, 1000, 2000), vocabulary=training.VOCABULARY)
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, warmup_steps=4, weight_decay=0.1, gradient_clip=1.0)
MODES: tuple[Recompute, ...] = ("None", "Selective", "Full")


def plans(count: int) -> list[Plan]:
    return [random_plan(STREAM.lengths, 1, seed) for seed in range(count)]


def work_of(device: torch.device, step: int, plan: Plan) -> StepInput:
    work = training.work_of(STREAM, step, plan, 0)
    batch = Batch(*(x.to(device) for x in (work.batch.tokens, work.batch.labels, work.batch.positions)))
    return StepInput(work.step, work.parts, work.operations, batch, work.valid, work.labels, work.plan)


def engine_of(
    world: ThreadWorld, device: torch.device, dtype: torch.dtype, memory: MemoryPolicy | None = None
) -> Engine:
    world.clock = DeviceClock.of(device)
    layout, seat = layout_of([(1, MODEL.layers)]), layout_of([(1, MODEL.layers)]).ranks()[0]
    rows = training.VOCABULARY
    engine = Engine(MODEL, rows, OPTIMIZER, 20, layout, seat, world, device, dtype, memory=memory)  # type: ignore[arg-type]
    engine.initialise(training.SEED)
    return engine


def losses(world: ThreadWorld, kind: str, dtype: torch.dtype) -> list[float]:
    device = torch.device(kind)
    engine = engine_of(world, device, dtype)
    steps = (work_of(device, step, plan) for step, plan in enumerate(plans(20)))
    return [engine.step(work, time.perf_counter()).loss_sum / work.labels for work in steps]


def test_twenty_steps_in_bf16_on_a_device_follow_those_in_fp32_on_the_cpu() -> None:
    (narrow,), (wide,) = (
        run_threads(1, losses, kind, dtype) for kind, dtype in (("cuda", torch.bfloat16), ("cpu", torch.float32))
    )
    assert np.allclose(narrow, wide, rtol=0.01)


def gradient(world: ThreadWorld, memory: MemoryPolicy) -> tuple[torch.Tensor, int]:
    """The owned gradient of a step, and the most bytes of the device that it took."""
    device = torch.device("cuda")
    engine = engine_of(world, device, torch.bfloat16, memory)
    torch.cuda.reset_peak_memory_stats()
    engine.compute(work_of(device, 0, plans(1)[0]))
    return engine.optimizer.reduce(), torch.cuda.max_memory_allocated()


def test_recompute_and_offload_on_a_device_change_no_bit_and_save_memory() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        ((expected, most),) = run_threads(1, gradient, MemoryPolicy())
        for recompute, ratio in itertools.product(MODES, (0.0, 1.0)):
            copies = CudaCopies(torch.device("cuda"))
            copies.smallest = 0
            ((found, peak),) = run_threads(1, gradient, MemoryPolicy(recompute, lambda _, r=ratio: r, copies))
            assert torch.equal(found, expected), (recompute, ratio)
            assert peak < most or (recompute, ratio) == ("None", 0.0)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_wait_that_the_host_does_not_see_is_measured_on_the_device() -> None:
    clock, other = DeviceClock.of(torch.device("cuda")), torch.cuda.Stream()
    with torch.cuda.stream(other):
        torch.cuda._sleep(100_000_000)  # cycles: some 50 ms
    before = time.perf_counter()
    with clock.waiting():
        torch.cuda.current_stream().wait_stream(other)
    assert time.perf_counter() - before < 0.02
    assert clock.waited(0, 1) > 0.02


def test_a_snapshot_on_a_device_holds_the_values_of_its_moment() -> None:
    box, values = full_box("w", (1 << 24,)), torch.ones(1 << 24, device="cuda")
    entries, copied = snapshots_of(torch.device("cuda")).take({"parameter": {box: values}})
    copied.wait()
    values.zero_()
    copied.synchronize()
    ((_, _, host),) = entries
    assert host.is_pinned()
    assert float(host.min()) == 1.0


def abort_on_nccl(_: ProcessGroups, folder: str) -> list[list[float]]:
    leave_world()
    device, aborter = torch.device("cuda"), WorldAborter()
    world = ProcessGroups(dist.FileStore(f"{folder}/first", 1), 0, 1, device, aborter.is_aborted)
    assert world.scalars([2.0]) == [[2.0]]
    aborter.abort_world()
    with pytest.raises((RuntimeError, ValueError)):
        world.scalars([2.0])
    leave_world()
    aborter.begin()
    return ProcessGroups(dist.FileStore(f"{folder}/second", 1), 0, 1, device, aborter.is_aborted).scalars([3.0])


def test_a_process_whose_nccl_world_is_aborted_uses_nothing_of_it_and_joins_the_next(tmp_path: Path) -> None:
    assert run_ranks(1, abort_on_nccl, str(tmp_path)) == [[[3.0]]]
