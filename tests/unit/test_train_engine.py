"""What the engine computes, without processes: loss, learning rate, initial values, and the walk over a step's operations."""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
import time
import tracemalloc
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.nn import functional

from coxswain.boxes import Box, full_box
from coxswain.config import ModelConfig, OptimizerConfig
from coxswain.neighbours import Neighbours
from coxswain.plan.values import Operation, Slice, Task
from coxswain_train.engine.links import StageLinks
from coxswain_train.engine.schedule import learning_rate
from coxswain_train.engine.step import Part, StepClock, StepOutcome, by_wave, parts, run_operations, run_waves
from coxswain_train.model.init_weights import init_box
from coxswain_train.model.llama import Llama, RMSNorm
from coxswain_train.model.loss import IGNORED, IdRange, linear_cross_entropy
from coxswain_train.model.tensor_parallel import ModelPart, enter
from coxswain_train.parallel.clock import DeviceClock
from tests.distributed.threads import ThreadWorld, run_threads

MODEL = ModelConfig(layers=2, hidden=8, heads=1, kv_heads=1, feed_forward=8)


def samples(rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, a head of 19 words, and labels of which every fourth is ignored. Label 0 occurs."""
    g = torch.Generator().manual_seed(3)
    hidden, weight = (torch.randn(n, 8, generator=g, dtype=torch.float64).to(dtype) for n in (rows, 19))
    labels = (torch.arange(rows) * 5 % 19).where(torch.arange(rows) % 4 > 0, IGNORED)
    return hidden, weight, labels.index_fill(0, torch.tensor([1]), 0)


def gradients(total: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(total * 0.5, inputs)


@pytest.mark.parametrize("chunk", [1, 7, 15, 29, 30, 31])
def test_the_loss_in_chunks_of_any_size_equals_torchs_with_its_gradients(chunk: int) -> None:
    hidden, weight, labels = samples(30, torch.float64)
    hidden.requires_grad_(), weight.requires_grad_()
    ours = linear_cross_entropy(hidden, weight, labels, chunk)
    theirs = functional.cross_entropy(hidden @ weight.T, labels, reduction="sum")
    assert torch.allclose(ours, theirs, rtol=1e-13, atol=0)
    for mine, other in zip(gradients(ours, hidden, weight), gradients(theirs, hidden, weight), strict=True):
        assert torch.allclose(mine, other, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("trained", [True, False])
def test_the_loss_of_bf16_weights_is_computed_and_summed_in_fp32(trained: bool, ranks: int) -> None:
    """The logits are bf16; what follows adds no error of bf16, neither in a row nor over 3,000 rows: in training and in an
    evaluation, and where a tensor group shares the head."""
    hidden, weight, labels = samples(3000, torch.bfloat16)

    def member(world: ThreadWorld) -> Tensor:
        mine = weight[: 19 if ranks == 1 else 8] if world.rank == 0 else weight[8:]
        group = world.tensor_group(tuple(range(ranks)))
        with torch.set_grad_enabled(trained):  # of this thread
            return linear_cross_entropy(hidden, mine, labels, 10, IdRange(group, 8 * world.rank) if group else None)

    found = run_threads(ranks, member)
    exact = functional.cross_entropy((hidden @ weight.T).double(), labels, reduction="sum")
    assert [x.dtype for x in found] == [torch.float32] * ranks
    assert [float(x) for x in found] == pytest.approx([float(exact)] * ranks, rel=1e-5)


def test_a_rank_without_words_leaves_the_loss_of_very_unlikely_ones_as_it_is() -> None:
    """Its own largest logit is below all others: with zero in its place their exponentials would all be zero."""
    hidden, weight, labels = torch.full((3, 8), 100.0), torch.full((19, 8), -100.0), torch.tensor([0, 5, IGNORED])

    def member(world: ThreadWorld) -> Tensor:
        group = world.tensor_group((0, 1))
        assert group is not None
        mine = weight if world.rank == 0 else weight[19:]
        return linear_cross_entropy(hidden, mine, labels, 2, IdRange(group, 19 * world.rank))

    assert [float(x) for x in run_threads(2, member)] == pytest.approx([2 * math.log(19)] * 2)


def test_the_gradient_of_a_bf16_head_is_summed_over_chunks_in_fp32() -> None:
    """A thousand equal rows: a sum in bf16 stays at 256 of them. What waits for the backward takes as little memory."""
    hidden, weight, labels = (x[1:2] if x.shape[0] != 19 else x for x in samples(30, torch.bfloat16))
    weight.requires_grad_()
    (one,) = gradients(linear_cross_entropy(hidden, weight, labels), weight)
    many = linear_cross_entropy(hidden.repeat(1000, 1), weight, labels.repeat(1000), 1)
    assert [x.dtype for x in many.grad_fn.saved_tensors] == [torch.bfloat16, torch.bfloat16]  # type: ignore[union-attr]
    assert torch.allclose(gradients(many, weight)[0].float(), 1000 * one.float(), rtol=0.01)


def test_the_loss_of_no_tokens_or_no_labels_is_zero() -> None:
    weight = torch.randn(19, 8, requires_grad=True)
    none = linear_cross_entropy(torch.zeros(0, 8), weight, torch.zeros(0, dtype=torch.int64))
    unlabelled = linear_cross_entropy(torch.ones(3, 8), weight, torch.full((3,), IGNORED))
    total = none + unlabelled
    total.backward()
    assert total.item() == 0
    assert weight.grad is not None and float(weight.grad.abs().max()) == 0


@pytest.mark.parametrize(("filled", "ids", "words"), [(0, 0, 20), (10, 0, 10), (10, 5, 10), (10, 15, 15), (20, 15, 20)])
def test_rows_behind_the_last_that_is_filled_or_of_an_id_are_no_words_unless_all_are_empty(
    filled: int, ids: int, words: int
) -> None:
    """Some models begin with a head of zeros alone. Without a hidden state all words are equally likely."""
    model = Llama(MODEL, 20, ids=ids)
    with torch.no_grad():
        for weight in model.weights().values():
            weight[:filled], weight[filled:] = -1.0, 0.0
    model.leave_out_empty_rows()
    loss = model.token_losses(torch.zeros(3, 8), torch.tensor([0, 5, 9]))
    assert loss.item() == pytest.approx(3 * math.log(words))


def test_a_stage_between_the_first_and_the_last_has_no_rows_to_leave_out() -> None:
    middle = Llama(replace(MODEL, layers=3), 20, ModelPart(1, 2, 3))
    middle.leave_out_empty_rows()
    assert all("layers.1." in name for name in middle.weights())


class Doubling:
    """A tensor group whose other rank has the same."""

    index, degree = 0, 2

    def sum(self, x: Tensor) -> None:
        assert x.is_contiguous()
        x.mul_(2)

    def maximum(self, x: Tensor) -> None: ...


@pytest.mark.parametrize("shape", [(2, 3), (3, 2)])
def test_a_sum_over_a_tensor_group_in_backward_leaves_the_gradient_of_others_as_it_is(shape: tuple[int, int]) -> None:
    """Autograd may give one tensor to several; one of other strides is summed as well."""
    x = torch.zeros(shape, requires_grad=True)
    given = torch.ones(2, 3) if shape == (2, 3) else torch.ones(2, 3).T
    enter(x, Doubling()).backward(given)
    assert x.grad is not None and (float(x.grad.min()), float(given.max())) == (2.0, 1.0)


def test_the_rate_warms_up_then_falls_to_its_minimum_and_stays() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=4, minimum_ratio=0.1)
    rates = [learning_rate(config, step, 24) for step in range(40)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert all(a > b for a, b in itertools.pairwise(rates[4:25]))
    assert rates[14] == pytest.approx(0.55)
    assert rates[24:] == pytest.approx([0.1] * 16)


def test_a_constant_schedule_warms_up_and_stays_at_its_peak() -> None:
    config = OptimizerConfig(learning_rate=2.0, warmup_steps=2, schedule="Constant")
    assert [learning_rate(config, step, 5) for step in range(5)] == [1.0, 2.0, 2.0, 2.0, 2.0]


def test_a_decay_longer_than_what_follows_the_warm_up_begins_at_the_peak_and_ends_with_the_job() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=10, schedule="WSD", decay_steps=20, minimum_ratio=0.0)
    assert [learning_rate(config, step, 20) for step in (9, 10, 15, 20)] == [1.0, 1.0, 0.5, 0.0]


def test_a_schedule_without_a_warm_up_begins_at_its_peak() -> None:
    assert learning_rate(OptimizerConfig(learning_rate=2.0, warmup_steps=0), 0, 5) == 2.0


@pytest.mark.parametrize("total", [3, 4])
def test_a_warm_up_as_long_as_the_job_or_longer_peaks_and_then_is_at_its_minimum(total: int) -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=4, minimum_ratio=0.1)
    rates = [learning_rate(config, step, total) for step in range(6)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 0.1])


def plain_normal(seed: int, name: str, element: int) -> float:
    """splitmix64 and Box-Muller on Python's integers, as the module's docstring specifies them."""
    key = int.from_bytes(hashlib.sha256(struct.pack("<q", seed) + name.encode()).digest()[:8], "little")

    def uniform(counter: int) -> float:
        x = (key + counter) * 0x9E3779B97F4A7C15 % 2**64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return (((x ^ x >> 31) >> 11) + 1) / 2**53

    return math.sqrt(-2 * math.log(uniform(2 * element))) * math.cos(2 * math.pi * uniform(2 * element + 1))


@pytest.mark.parametrize(
    ("name", "deviation"),
    [("model.layers.0.self_attn.q_proj.weight", 0.02), ("model.layers.1.self_attn.o_proj.weight", 0.01),
     ("model.layers.0.mlp.down_proj.weight", 0.01), ("model.embed_tokens.weight", 0.02),
     ("h.0.attn_c_proj.weight", 0.01)],
)  # fmt: skip
def test_initial_values_are_those_of_the_specified_generator(name: str, deviation: float) -> None:
    """With two layers there are four projections into the residual stream: half the deviation."""
    found = init_box(-5, full_box(name, (6, 7)), (6, 7), MODEL).ravel()
    assert found.tolist() == pytest.approx(
        [plain_normal(-5, name, i) * deviation for i in range(42)], rel=1e-6, abs=1e-12
    )


def test_a_tensor_of_more_elements_than_are_made_at_one_time_is_whole() -> None:
    shape = (1030, 1024)  # more than 2^20
    whole, last = (init_box(1, Box("w", (o, 0), (n, 1024)), shape, MODEL) for o, n in ((0, 1030), (1020, 10)))
    assert np.array_equal(whole[1020:], last)
    assert np.all(np.abs(whole[1020:]).max(1) > 0)


def test_the_values_of_a_large_box_take_little_memory_besides_themselves() -> None:
    tracemalloc.start()
    found = init_box(1, Box("w", (0, 0), (8192, 1024)), (8192, 2048), MODEL)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.6 * found.nbytes


def test_norms_begin_at_one_and_biases_at_zero() -> None:
    for name, value in (("norm.weight", 1.0), ("ln_1.bias", 0.0)):
        assert init_box(1, Box(name, (2,), (3,)), (8,), MODEL).tolist() == [value] * 3


def test_a_bias_begins_at_zero_also_where_it_has_rows() -> None:
    assert not init_box(1, Box("h.0.distance_bias", (1, 0), (3, 5)), (4, 5), MODEL).any()


def test_a_norm_of_bf16_activations_is_rounded_once_before_its_weight_as_in_transformers() -> None:
    x = (3 * torch.randn(64, 100, generator=torch.Generator().manual_seed(3))).bfloat16()
    norm = RMSNorm(100, 0.5).bfloat16()
    torch.nn.init.constant_(norm.weight, 1.3)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 0.5).sqrt()
    assert torch.equal(norm(x), norm.weight * exact.bfloat16())


PACK = Task(0, "pack", (1,), (Slice(1, 4, 0, 5), Slice(1, 2, 0, 3)))
RING = Task(1, "ring", (2, 1, 0), (Slice(2, 9, 0, 1), Slice(0, 9, 1, 2)))  # too short for replica 1
OTHER = Task(2, "pack", (0,), (Slice(0, 7, 0, 6),))
LATER = Task(3, "ring", (0, 1), (Slice(0, 8, 0, 4), Slice(1, 8, 4, 8)))


def test_a_replica_takes_part_in_its_packs_and_rings_also_without_a_token_of_them() -> None:
    assert parts([PACK, RING, OTHER, LATER], 1) == {
        0: Part(PACK, PACK.slices, 0, 8), 1: Part(RING, (), 8, 8), 3: Part(LATER, (LATER.slices[1],), 8, 12)
    }  # fmt: skip


@dataclass
class FakeEvent:
    """A moment of a device that computes behind the host: it is known once the device has come there."""

    device: Device
    at: float = -1.0
    read: bool = False

    def record(self) -> None:
        self.at = self.device.time

    def synchronize(self) -> None:
        self.device.synchronised += 1
        self.read = True

    def elapsed_time(self, later: FakeEvent) -> float:
        assert later.read, "the device may not have come there yet"
        return 1000 * (later.at - self.at)


@dataclass
class Device:
    """Notes what runs on it. A forward takes 3 s, of which it waits for 1; a backward takes 5 s, of which it waits for 2."""

    done: list[str] = field(default_factory=list)
    time: float = 10.0
    synchronised: int = 0

    def __post_init__(self) -> None:
        self.clock = DeviceClock(lambda: FakeEvent(self))

    def forward(self, part: Part, received: None) -> tuple[Tensor, None]:
        self._run("F", part, 3, 1)
        return torch.tensor(1.5), None

    def backward(self, part: Part, received: None) -> None:
        self._run("B", part, 5, 2)

    def expect_last(self) -> None:
        self.done.append("last")

    def accumulate(self) -> None:
        self.done.append("accumulate")

    def _run(self, kind: str, part: Part, seconds: float, waits: float) -> None:
        self.done.append(f"{kind}{part.task.index}")
        self.time += seconds - waits
        with self.clock.waiting():
            self.time += waits


ORDER = [Operation("F", 0), Operation("F", 3), Operation("B", 0), Operation("B", 3)]


def test_moments_of_a_device_are_events_that_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[dict[str, bool]]()
    event = SimpleNamespace(record=lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda **given: made.append(given) or event)
    assert DeviceClock.of(torch.device("cuda")).mark() is event
    assert isinstance(DeviceClock.of(torch.device("cpu")).mark(), float)
    assert made == [{"enable_timing": True}]


def _no_links() -> StageLinks:
    """Those of a stage without neighbours."""
    exchange: Any = None
    return StageLinks(Neighbours(None, (), None, ()), exchange, 8, torch.float32, torch.device("cpu"))


def run(device: Any) -> StepOutcome:
    return run_operations(device, _no_links(), parts([PACK, LATER], 1), ORDER, device, device.clock)


def test_a_step_runs_in_the_plans_order_and_accumulates_after_each_backward() -> None:
    device: Any = Device()
    found = run(device)
    assert device.done == ["F0", "F3", "B0", "accumulate", "last", "B3", "accumulate"]
    assert found.loss_sum == 3.0


def test_waves_are_parted_by_barriers_also_without_operations_and_gradients_leave_in_the_last_one() -> None:
    device: Any = Device()
    mine = parts([PACK, replace(LATER, wave=2)], 1)
    in_turn = [Operation(kind, task) for task in (0, 3) for kind in ("F", "B")]
    run_waves(
        device, _no_links(), mine, by_wave(mine, in_turn, 4), device, device.clock, lambda: device.done.append("|")
    )
    assert device.done == ["F0", "B0", "accumulate", "|", "|", "F3", "B3", "accumulate", "|"]
    device.done.clear()
    run_waves(
        device, _no_links(), mine, by_wave(mine, in_turn, 3), device, device.clock, lambda: device.done.append("|")
    )
    assert device.done == ["F0", "B0", "accumulate", "|", "|", "F3", "last", "B3", "accumulate"]


def test_a_list_that_keeps_a_graph_over_the_end_of_its_wave_is_refused() -> None:
    mine = parts([PACK, replace(LATER, wave=1)], 1)
    with pytest.raises(ValueError, match="B of task 0: wave 0 of 2 after wave 1"):
        by_wave(mine, ORDER, 2)


def test_times_and_waits_of_a_device_are_recorded_as_events_and_read_only_at_the_end_of_the_step() -> None:
    device: Any = Device()
    clock = StepClock(device.clock, time.perf_counter())
    found = run(device)
    assert device.synchronised == 0
    timings = clock.timings(found.spans)
    assert [(t.task, t.kind, t.waited) for t in timings] == [(0, "F", 1), (3, "F", 1), (0, "B", 2), (3, "B", 2)]
    assert [t.stop - t.start for t in timings] == pytest.approx([3, 3, 5, 5])
    assert timings[0].start == pytest.approx(0, abs=1)  # the host's seconds between the two lines above
    assert [b.start - a.stop for a, b in itertools.pairwise(timings)] == pytest.approx([0, 0, 0])


def test_a_step_forgets_the_waits_of_the_step_before() -> None:
    device = Device()
    device._run("F", parts([PACK], 1)[0], 3, 1)
    StepClock(device.clock, time.perf_counter())
    assert device.clock.waits == []


def test_a_cpu_is_timed_by_the_hosts_clock() -> None:
    clock = DeviceClock.of(torch.device("cpu"))
    first = time.perf_counter()
    with clock.waiting():
        marks = clock.mark(), clock.mark()
    assert first <= marks[0] <= marks[1] <= time.perf_counter()
    assert clock.between(*marks) == marks[1] - marks[0]
    assert clock.waited(0, 1) >= marks[1] - marks[0]
