"""The predicted peak of a device is within a tenth of what torch's allocator says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as with_
from math import prod

import numpy as np
import pytest
import torch
from msgspec import UNSET
from msgspec.structs import replace
from torch import Tensor

from coxswain.config import ModelConfig
from coxswain.copies import wards_of
from coxswain.cost import memory
from coxswain.cost.change import WINDOWS, change_peak, change_peaks
from coxswain.cost.memory import Recompute, Workload, peaks
from coxswain.layout import Device, Layout
from coxswain.live import LiveSource
from coxswain.models import parameter_specs
from coxswain.plan.chunks import ring_slices
from coxswain.plan.values import Operation, StageOperations, Task
from coxswain_train.engine.engine import Engine
from coxswain_train.engine.memory import MemoryPolicy
from coxswain_train.engine.offload import Arriving, HostCopies
from coxswain_train.live.state import LiveState
from coxswain_train.model.loss import linear_cross_entropy
from coxswain_train.model.ring import Message
from tests.distributed import training
from tests.distributed.live_bytes import peak_bytes
from tests.distributed.plans import Plan
from tests.distributed.reference import Stream
from tests.distributed.threads import Mail, ThreadWorld, run_threads
from tests.distributed.worlds import Job, begin, numbered
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


class Away(HostCopies):
    """Host memory that torch's allocator knows nothing of, as a device's host is."""

    def save(self, x: Tensor) -> Tensor:
        """In numpy's memory, with the strides of `x`."""
        host = torch.from_numpy(np.empty(x.nbytes, np.uint8)).view(x.dtype).as_strided(x.shape, x.stride())
        return host.copy_(x.detach())

    def load(self, host: Tensor) -> Arriving:
        return torch.empty_like(host).copy_(host), None


@dataclass(frozen=True)
class Mirror:
    """A ring whose other members send what they get: they are like this one."""

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Mirror:
        for (_, sent), (_, received) in zip(sends, receives, strict=True):
            received.copy_(sent)
        return self

    def wait(self) -> None: ...

    def arrived(self) -> None: ...


class InMirrors(Engine):
    """Whose rings have other members beside a world of one rank."""

    def ring(self, replicas: tuple[int, ...]) -> Mirror:
        return Mirror()


def two_tasks(tokens: int, members: int = 1) -> Plan:
    """Packs, or with more members rings of one head group, of so many tokens a member."""
    whole = [tokens * members] * 2
    rings = [tuple(ring_slices([i], whole, tuple(range(members)))) for i in range(2)]
    size = members if members > 1 else UNSET
    tasks = tuple(
        Task(i, "ring" if members > 1 else "pack", tuple(range(members)), rings[i], ulysses=size) for i in range(2)
    )
    return tasks, (StageOperations(0, 0, tuple(Operation(k, i) for i in range(2) for k in ("F", "B"))),)  # type: ignore[arg-type]


def measured(world: ThreadWorld, model: ModelConfig, rows: int, tokens: int, work: Workload, dtype: torch.dtype) -> int:
    """The most bytes at one time in a step of two tasks, with weights and the optimizer's state."""
    layout = layout_of([(1, model.layers)])
    stream, members = Stream(lengths=(tokens * 2, tokens * 2), vocabulary=rows), 2 if work.exchanges else 1
    engine = InMirrors(
        model, rows, training.OPTIMIZER, 10, layout, layout.ranks()[0], world, torch.device("cpu"), dtype,  # type: ignore[arg-type]
        memory=MemoryPolicy(work.recompute, lambda _: work.offload, Away()),
    )  # fmt: skip
    engine.initialise(training.SEED)
    step = training.work_of(stream, 0, two_tasks(tokens, members), 0)
    held = [*engine.model.weights().values(), *(x for boxes in engine.boxes().values() for x in boxes.values())]
    return sum(x.nbytes for x in held) + peak_bytes(lambda: engine.compute(step))


@dataclass
class Twin(ThreadWorld):
    """A world of two whose other rank does what this one does."""

    def exchange(self, ranks: tuple[int, ...]) -> Mirror:  # type: ignore[override]
        return Mirror()

    def all_to_all(self, received: Tensor, sent: Tensor, receives: list[int], sends: list[int], hop: int) -> Twin:  # type: ignore[override]
        received.copy_(sent[: len(received)] if len(sent) >= len(received) else torch.zeros_like(received))
        return self

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None: ...

    def scalars(self, mine: list[float]) -> list[list[float]]:
        return [mine] * self.ranks


def measured_with_a_twin(model: ModelConfig, rows: int, tokens: int, dtype: torch.dtype, copies: bool) -> int:
    """The most bytes at one time in a whole step of one of two replicas on two trainers, with all that it holds."""
    layout = layout_of([(1, model.layers)], [(1, model.layers)])
    wards = wards_of(layout.ranks()) if copies else ()
    engine = Engine(
        model, rows, training.OPTIMIZER, 10, layout, layout.ranks()[0], Twin(Mail(), 0, 2), torch.device("cpu"), dtype,  # type: ignore[arg-type]
        wards=wards,
    )  # fmt: skip
    engine.initialise(training.SEED)
    stream = Stream(lengths=(tokens, tokens), vocabulary=rows)
    work = training.work_of(stream, 0, two_tasks(tokens), 0)
    work = with_(work, labels=2 * work.labels)
    cut = engine.live.current
    assert cut is not None
    held = [*engine.model.weights().values(), *(x for boxes in cut.own.boxes().values() for x in boxes.values())]
    held += [x for boxes in (cut.copy.boxes() if cut.copy else {}).values() for x in boxes.values()]
    return sum(x.nbytes for x in held) + peak_bytes(lambda: engine.step(work, time.perf_counter()))


@pytest.mark.parametrize("shape", ["mostly weights", "mostly weights in bf16"])
def test_the_predicted_peak_has_the_copies_of_another_rank_s_shard(shape: str) -> None:
    """Its optimizer state all the time, and its gradient until the update."""
    model, rows, tokens, dtype = SHAPES[shape]
    layout, specs = layout_of([(1, model.layers)], [(1, model.layers)]), parameter_specs(model, rows)
    without, predicted = (
        peaks(model, specs, layout, Workload(dtype.itemsize, tokens, copies=copies, buckets=0))[0, 0, 0].total
        for copies in (False, True)  # a model of these sizes fills no bucket
    )
    assert without == pytest.approx(measured_with_a_twin(model, rows, tokens, dtype, False), rel=0.1)
    assert predicted == pytest.approx(measured_with_a_twin(model, rows, tokens, dtype, True), rel=0.1)
    assert without < 0.8 * predicted


def held_bytes(live: LiveState) -> int:
    """Of all that a worker holds between two worlds."""
    states = [live.current.own, live.current.copy] if live.current else []
    rooms = (x for state in states if state for boxes in state.boxes().values() for x in boxes.values())
    return sum(x.nbytes for x in (*rooms, *(live.weights or {}).values()))


def measured_change(
    world: ThreadWorld, job: Job, generation: int, source: LiveSource, measured: int
) -> tuple[int, int]:
    """The most bytes at one time while the rank `measured` takes over, with what it held before; and the bytes that move."""
    held, engines = held_bytes(job.workers[job.layouts[generation].ranks()[world.rank].device]), list[Engine]()

    def change() -> None:
        engines.append(job.engine(world, generation))
        engines[0].take_over(source)

    most = held + (peak_bytes(change) if world.rank == measured else change() or 0)
    return most, engines[0].moved.state_bytes + engines[0].moved.weight_bytes


def a_change(before: Layout, after: Layout, rank: int = 0, copies: bool = False) -> tuple[int, int, int]:
    """Of a rank of the second layout the measured peak and the predicted one without windows; and the bytes that move."""
    model, _, _, dtype = SHAPES["mostly weights"]
    job = Job(model, Stream((7, 9), training.VOCABULARY), dtype, copies=copies)
    run_threads(len(before.ranks()), begin, job, job.form(before), range(1))
    source = job.source(after)
    most, moved = run_threads(len(after.ranks()), measured_change, job, job.form(after), source, rank)[rank]
    specs, device = parameter_specs(model, training.VOCABULARY), after.ranks()[rank].device
    return most, change_peaks(specs, model.layers, before, after, dtype.itemsize, copies)[device], moved


def test_the_predicted_peak_of_a_change_is_that_of_both_states_and_both_models_weights_and_what_stays_is_held_once() -> (
    None
):
    """Of one rank, which exchanges nothing, and whose state stays in its boxes."""
    layout = numbered(layout_of([(1, 6)]))
    found, predicted, moved = a_change(layout, layout)
    assert (predicted, moved) == (pytest.approx(found, rel=0.1), 0)


TABLES = 2 << 20  # bytes, of factors for digests
ONE, TWO = numbered(layout_of([(1, 6)])), numbered(layout_of([(1, 6)], [(1, 6)]))
MIXED = numbered(layout_of([(1, 3), (1, 6)], [(1, 6)]))
EARLY, LATE = (numbered(layout_of([(1, first), (1, 6)])) for first in (3, 4))


@pytest.mark.parametrize(
    ("before", "after", "rank", "copies"),
    [
        pytest.param(LATE, EARLY, 0, False, id="a device that gives a layer away"),
        pytest.param(LATE, EARLY, 1, True, id="a device that gets a layer, with copies"),
        pytest.param(ONE, TWO, 1, False, id="a device that joins"),
        pytest.param(ONE, TWO, 1, True, id="a device that joins, with copies"),
        pytest.param(TWO, ONE, 0, True, id="a device whose peer has left"),
        pytest.param(MIXED, MIXED, 0, False, id="a device of the larger replica"),
        pytest.param(MIXED, MIXED, 2, False, id="a device of the smaller replica"),
    ],
)
def test_no_device_takes_more_in_a_change_than_is_predicted(
    before: Layout, after: Layout, rank: int, copies: bool
) -> None:
    """Beside the tables of digests and what is on its way, of which a thread's world keeps a second copy: no window is full."""
    most, predicted, moved = a_change(before, after, rank, copies)
    assert most <= predicted + 2 * moved + TABLES


def test_a_worker_that_joins_makes_no_room_for_state_before_the_change_does() -> None:
    """Else it would hold the new state twice."""
    model, _, _, dtype = SHAPES["mostly weights"]
    job, layout = Job(model, Stream((7, 9), training.VOCABULARY), dtype), numbered(layout_of([(1, 6)]))
    generation = job.form(layout)
    (found,) = run_threads(1, lambda world: peak_bytes(lambda: job.engine(world, generation)))
    weights = dtype.itemsize * sum(prod(spec.shape) for spec in parameter_specs(model, training.VOCABULARY))
    assert found == pytest.approx(weights, rel=0.1)


def test_layers_that_stay_with_their_device_are_predicted_once() -> None:
    """The state of three of four layers stays; both models' weights are there for a moment."""
    model, _, _, dtype = SHAPES["mostly weights"]
    specs = parameter_specs(model, training.VOCABULARY)
    size = sum(prod(spec.shape) for spec in specs if spec.place == 0)
    whole, less, grows = (
        change_peaks(specs, model.layers, *layouts, dtype.itemsize, copies=False)[Device(0, 0)]
        for layouts in ((LATE, LATE), (LATE, EARLY), (EARLY, LATE))
    )
    assert whole - less == dtype.itemsize * size and less == grows


def test_a_device_that_joins_holds_the_new_state_alone_and_copies_double_both() -> None:
    model, rows, _, _ = SHAPES["mostly weights"]
    specs, one, two = parameter_specs(model, rows), *(numbered(layout_of(*[[(1, model.layers)]] * n)) for n in (1, 2))
    elements = sum(prod(spec.shape) for spec in specs)
    joined = change_peaks(specs, model.layers, one, two, 2, copies=False)
    assert joined == {
        Device(0, 0): (2 + 12 + 2 + 6) * elements,
        Device(1, 0): pytest.approx((2 + 6) * elements, abs=12),
    }
    same = change_peaks(specs, model.layers, two, two, 2, copies=True)[Device(0, 0)]
    assert same == pytest.approx(2 * (2 + 12) * elements - 6 * elements, rel=0.01)
    assert change_peak(specs, model.layers, one, two, 2, copies=False) == (Device(0, 0), joined[Device(0, 0)] + WINDOWS)


OFFLOADED = [
    pytest.param(shape, offload, marks=[] if (shape, offload) == ("many tokens", 1.0) else [pytest.mark.slow])
    for shape in ("many tokens", "bf16", "wide feed-forward", "mostly weights")
    for offload in (0.3, 1.0)
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("shape", "offload"), OFFLOADED)
def test_what_offload_moves_away_is_not_in_the_predicted_peak(shape: str, offload: float) -> None:
    model, rows, tokens, dtype = SHAPES[shape]
    model = replace(model, layers=model.layers + 2)
    for recompute in MODES:
        work = Workload(dtype.itemsize, tokens, recompute, offload)
        predicted, without = (
            peaks(model, parameter_specs(model, rows), layout_of([(1, model.layers)]), each)[0, 0, 0].total
            for each in (work, with_(work, offload=0.0))
        )
        (found,) = run_threads(1, measured, model, rows, tokens, work, dtype)
        assert predicted == pytest.approx(found, rel=0.1), (recompute, without)
        assert predicted < without or (recompute, offload) == ("Full", 0.3)  # whole inputs of layers go


def test_what_an_exchange_of_heads_keeps_is_in_the_predicted_peak() -> None:
    """Of a ring of two, which are one head group."""
    model, rows, tokens, dtype = SHAPES["many tokens"]
    work = Workload(dtype.itemsize, tokens, exchanges=True)
    (found,) = run_threads(1, measured, model, rows, tokens, work, dtype)
    predicted = peaks(model, parameter_specs(model, rows), layout_of([(1, model.layers)]), work)[0, 0, 0]
    assert predicted.total == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize(("dtype", "tokens"), [(torch.float32, 64), (torch.bfloat16, 64), (torch.bfloat16, 512)])
def test_the_loss_takes_what_is_predicted_for_it(dtype: torch.dtype, tokens: int) -> None:
    """The head's gradient counts among all gradients: what backward returns is given up within."""
    rows, hidden = 4096, 512
    x, head = torch.randn(tokens, hidden).to(dtype).requires_grad_(), torch.randn(rows, hidden).to(dtype)
    labels = torch.zeros(tokens, dtype=torch.int64)
    widths = memory.Widths(hidden=hidden, query=hidden, key=hidden, inner=64, heads=4, rows=rows)
    predicted = memory.loss_transient(widths, Workload(dtype.itemsize, tokens))
    found = peak_bytes(lambda: linear_cross_entropy(x, head.requires_grad_(), labels))
    assert predicted == pytest.approx(found, rel=0.1)
    loss = linear_cross_entropy(x, head.requires_grad_(), labels)
    assert peak_bytes(lambda: torch.autograd.grad(loss, head)) <= 4 * tokens * hidden * dtype.itemsize


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
