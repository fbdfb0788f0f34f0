"""What the ranks of a test run: the engine over a stream of sequences, with whatever plans the test gives."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import torch
from torch import Tensor

from coxswain.boxes import Box
from coxswain.config import ModelConfig, OptimizerConfig
from coxswain.layout import Device, Layout, uniform_layout
from coxswain.membership.values import Cursor
from coxswain.planlog import manifest_key
from coxswain.wire import CheckpointManifest, Shard
from coxswain_link.store import open_store
from coxswain_train.checkpoint import save_load, snapshots
from coxswain_train.engine.engine import Engine, StepInput
from coxswain_train.engine.memory import MemoryPolicy
from coxswain_train.engine.step import Batch, Part, parts
from coxswain_train.live.state import LiveState
from coxswain_train.parallel.process_groups import ProcessGroups
from coxswain_train.parallel.state import views
from tests.distributed.plans import Plan, random_plan
from tests.distributed.reference import Stream

MODEL = ModelConfig(layers=2, hidden=32, heads=4, kv_heads=2, feed_forward=48)
VOCABULARY = 64
OPTIMIZER = OptimizerConfig(
    learning_rate=3e-3, warmup_steps=4, weight_decay=0.1, gradient_clip=0.5, schedule="Cosine", epsilon=1e-8
)
SEED = 11


def batch_of(stream: Stream, step: int, mine: dict[int, Part]) -> Batch:
    """This replica's slices, as a constructor lays them out."""
    columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for part in mine.values():
        for s in part.slices:
            tokens, labels = stream.sequence(step, s.sequence)
            columns.append((tokens[s.start : s.stop], labels[s.start : s.stop], np.arange(s.start, s.stop)))
    empty = [np.zeros(0, dtype=np.int64)]
    joined = (np.concatenate(empty + [c[i] for c in columns]).astype(np.int64) for i in range(3))
    return Batch(*(torch.from_numpy(a) for a in joined))


def work_of(stream: Stream, step: int, plan: Plan, replica: int, stage: int = 0) -> StepInput:
    tasks, operations = plan
    (own,) = (o.operations for o in operations if (o.replica, o.stage) == (replica, stage))
    mine = parts(tasks, replica)
    batch = batch_of(stream, step, mine)
    return StepInput(
        step=step,
        parts=mine,
        operations=own,
        batch=batch,
        valid=int((batch.labels >= 0).sum()),
        labels=stream.labels(step),
        plan=step,
        waves=1 + max(task.wave or 0 for task in tasks),
    )


def engine_of(
    world: ProcessGroups,
    dtype: torch.dtype,
    model: ModelConfig = MODEL,
    optimizer: OptimizerConfig = OPTIMIZER,
    steps: int = 20,
    layout: Layout | None = None,
    memory: MemoryPolicy | None = None,
    live: LiveState | None = None,
    generation: int = 0,
    wards: Sequence[int] = (),
    ids: int = 0,
) -> Engine:
    """This rank's engine; without a layout every rank is a replica."""
    layout = layout or uniform_layout([Device(0, r) for r in range(world.ranks)], model.layers)
    seat = layout.ranks()[world.rank]
    device = torch.device("cpu")
    return Engine(
        model, VOCABULARY, optimizer, steps, layout, seat, world, device, dtype, live, memory, generation, wards, ids
    )


def weights_of(engine: Engine) -> dict[str, np.ndarray]:
    return {name: p.detach().to(torch.float64).numpy().copy() for name, p in engine.model.weights().items()}


def train(
    world: ProcessGroups, dtype: torch.dtype, stream: Stream, plans: Sequence[Plan], model: ModelConfig = MODEL,
    layout: Layout | None = None, memory: MemoryPolicy | None = None,
) -> tuple[dict[str, np.ndarray], list[float]]:  # fmt: skip
    """One optimizer step per plan from the initial state; the weights, and this rank's part of the losses."""
    engine = engine_of(world, dtype, model, steps=len(plans), layout=layout, memory=memory)
    engine.initialise(SEED)
    losses = _steps(engine, stream, dict(enumerate(plans)))
    return weights_of(engine), losses


def _steps(engine: Engine, stream: Stream, plans: Mapping[int, Plan]) -> list[float]:
    """Runs these steps; this rank's part of the losses."""
    losses = []
    for step, plan in plans.items():
        result = engine.step(work_of(stream, step, plan, engine.seat.replica, engine.seat.stage), time.perf_counter())
        losses.append(result.loss_sum / stream.labels(step))
    return losses


def save_after(
    world: ProcessGroups,
    stream: Stream,
    plans: Sequence[Plan],
    model: ModelConfig,
    layout: Layout,
    uri: str,
    steps: int,
) -> tuple[tuple[Shard, ...], list[float]]:
    """Trains, with a checkpoint after some steps; its shards, and the losses of the steps after it."""
    engine, after = engine_of(world, torch.float64, model, layout=layout), dict(enumerate(plans))
    engine.initialise(SEED)
    _steps(engine, stream, {step: after.pop(step) for step in range(steps)})
    shards = tuple(save_load.write_shards(open_store(uri, create=True), snapshots.snapshot(engine.boxes())))
    return shards, _steps(engine, stream, after)


def resume(
    world: ProcessGroups, stream: Stream, plans: Mapping[int, Plan], model: ModelConfig, layout: Layout, uri: str,
    shards: Sequence[Shard],
) -> list[float]:  # fmt: skip
    """The losses of these steps from a checkpoint, which another layout may have written."""
    engine = engine_of(world, torch.float64, model, layout=layout)
    save_load.load(open_store(uri), shards, engine.make_room())
    engine.begin(min(plans))
    return _steps(engine, stream, plans)


def gradients(world: ProcessGroups, dtype: torch.dtype, stream: Stream, plans: Sequence[Plan]) -> list[np.ndarray]:
    """The owned part of the reduced gradient of step 0 under each plan, without updates."""
    engine = engine_of(world, dtype)
    engine.initialise(SEED)
    return [_gradient(world, engine, work_of(stream, 0, plan, world.rank)).double().numpy() for plan in plans]


def _gradient(world: ProcessGroups, engine: Engine, work: StepInput) -> Tensor:
    engine.compute(work)
    return engine.optimizer.reduce()


def train_with_a_foreign_plan(world: ProcessGroups, stream: Stream, plan: Plan) -> None:
    """Each rank says that it followed another plan. State must be as before when the step is refused."""
    engine = engine_of(world, torch.float64)
    engine.initialise(SEED)
    before = weights_of(engine)
    work = replace(work_of(stream, 0, plan, world.rank), plan=world.rank)
    try:
        engine.step(work, time.perf_counter())
    finally:
        assert all(np.array_equal(before[name], now) for name, now in weights_of(engine).items())


def masters(world: ProcessGroups, dtype: torch.dtype, stream: Stream, plans: Sequence[Plan]) -> np.ndarray:
    """This rank's master parameters after some steps."""
    engine = engine_of(world, dtype, steps=len(plans))
    engine.initialise(SEED)
    for step, plan in enumerate(plans):
        engine.step(work_of(stream, step, plan, world.rank), time.perf_counter())
    return np.concatenate([values.numpy().ravel() for values in engine.boxes()["parameter"].values()])


def initial_weights(world: ProcessGroups, model: ModelConfig) -> dict[str, np.ndarray]:
    engine = engine_of(world, torch.float32, model)
    engine.initialise(SEED)
    return weights_of(engine)


def save_with_manifest(
    world: ProcessGroups, stream: Stream, uri: str, model: ModelConfig = MODEL
) -> dict[str, np.ndarray]:
    """One step, then a checkpoint; the weights in it."""
    engine, store = engine_of(world, torch.float32, model), open_store(uri, create=True)
    engine.initialise(SEED)
    engine.step(work_of(stream, 0, random_plan(stream.lengths, 1, 0), 0), time.perf_counter())
    shards = tuple(save_load.write_shards(store, snapshots.snapshot(engine.boxes())))
    store.put(manifest_key(1), msgspec.json.encode(manifest(1, shards)))
    return weights_of(engine)


def start_and_save(world: ProcessGroups, model: ModelConfig, uri: str, ids: int = 0) -> tuple[Shard, ...]:
    """This rank's shards of a job that has begun and taken no step: what came in by `initFrom`, if it names any."""
    engine = engine_of(world, torch.float32, model, ids=ids)
    engine.initialise(SEED)
    return tuple(save_load.write_shards(open_store(uri, create=True), snapshots.snapshot(engine.boxes())))


def manifest(step: int, shards: tuple[Shard, ...]) -> CheckpointManifest:
    """Of a checkpoint, with nothing but its shards in it."""
    return CheckpointManifest(
        version=1,
        job="default/small",
        step=step,
        attempt_generation=1,
        cursor=Cursor(step, 0, 0, ()),
        stream_digest="",
        tokens=0,
        model_hash="",
        stream_hash="",
        index_hash="",
        vocabulary=VOCABULARY,
        shards=shards,
        time=0.0,
    )


def owned_gradient(
    world: ProcessGroups, model: ModelConfig, layout: Layout, stream: Stream, plan: Plan,
    dtype: torch.dtype = torch.float64, memory: MemoryPolicy | None = None,
) -> tuple[float, list[tuple[Box, np.ndarray]]]:  # fmt: skip
    """The replica's loss, where it counts, and the reduced gradient of step 0 in the boxes that this rank owns.

    Embedding and head have zeros in the rows beyond the stream's vocabulary, as imported weights may have.
    """
    engine, seat = engine_of(world, dtype, model, layout=layout, memory=memory), layout.ranks()[world.rank]
    engine.initialise(SEED)
    for box, values in engine.boxes()["parameter"].items():
        if engine.shapes[box.name][0] == VOCABULARY:
            values[max(0, stream.vocabulary - box.offset[0]) :] = 0
    engine.begin(0)
    work = work_of(stream, 0, plan, seat.replica, seat.stage)
    outcome = engine.compute(work)
    owned = views(engine.optimizer.reduce(), list(engine.boxes()["parameter"]))
    return outcome.loss_sum if engine.counts else 0.0, [(box, values.numpy()) for box, values in owned]
