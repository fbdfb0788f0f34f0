"""One step of the sharded optimizer without processes: in bf16 as on CUDA, and in fp64 against torch's own AdamW."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from coxswain.boxes import full_box
from coxswain.config import OptimizerConfig, ParameterGroupConfig
from coxswain.errors import Refused, Retryable
from coxswain.holdings import Holding
from coxswain.shards import shards
from coxswain_train.parallel.grid import Grid
from coxswain_train.parallel.norms import ROW, Square, norm_of
from coxswain_train.parallel.zero1 import GlobalStats, RankStats, Zero1Optimizer, check_stats
from tests.updates import apply

CONFIG = OptimizerConfig(learning_rate=0.1, weight_decay=0.5, gradient_clip=1.0)
NINE, SIXTEEN = (Square(top=0, counts=(square, 0, 0)).row() for square in (9, 16))
SHAPES = {"norm": (3,), "matrix": (4, 3)}  # the buffer holds the matrix first


class Done:
    def wait(self) -> None: ...

    def is_completed(self) -> bool:
        return True


class Reduction:
    """The reductions of the last of several ranks. Each of the others sends one number in every place."""

    def __init__(self, *others: float) -> None:
        self.others, self.grid = others, Grid(len(others) + 1)
        self.rows: list[list[float]] = []

    def all_to_all(self, received: Tensor, sent: Tensor, receives: list[int], sends: list[int], hop: int) -> Done:
        *parts, mine = torch.split(received, receives)
        for part, value in zip(parts, self.others, strict=True):
            part.fill_(value)
        mine.copy_(torch.split(sent, sends)[-1])
        return Done()

    def scalars(self, mine: list[float]) -> list[list[float]]:
        self.rows.append(mine)
        return [mine]


def make(
    dtype: torch.dtype,
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    reduction: Reduction | None = None,
    in_parts: Collection[str] = (),
) -> tuple[Zero1Optimizer, dict[str, nn.Parameter]]:
    """An optimizer of replicas of one device, with masters 0.5, 1.0, 1.5, ... in each box."""
    weights = {name: nn.Parameter(torch.empty(shape, dtype=dtype)) for name, shape in shapes.items()}
    reduction = reduction or Reduction()
    held = tuple(Holding(full_box(name, shape)) for name, shape in shapes.items())
    me = len(reduction.others)
    optimizer = Zero1Optimizer(weights, shards([held] * (me + 1)), me, reduction, in_parts=in_parts)
    for values in optimizer.boxes()["parameter"].values():
        values.copy_((torch.arange(values.numel()) + 1).view(values.shape) / 2)
    optimizer.all_gather()
    return optimizer, weights


def masters(optimizer: Zero1Optimizer) -> dict[str, Tensor]:
    return {box.name: values.clone() for box, values in optimizer.boxes()["parameter"].items()}


def stats(norm: float) -> GlobalStats:
    return GlobalStats(loss_sum=0.0, norm=norm)


@pytest.fixture
def filled_memory() -> Iterator[None]:
    """Memory that torch does not initialise holds NaN."""
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode("default")


def backward(weight: nn.Parameter, value: float) -> None:
    """What a task's backward leaves, which adds to a gradient that is there."""
    gradient = torch.full_like(weight, value)
    weight.grad = gradient if weight.grad is None else weight.grad + gradient


@pytest.mark.parametrize("others", [(), (0.0,)])
def test_bf16_gradients_of_several_tasks_add_up_in_fp32(others: tuple[float, ...]) -> None:
    """In bf16, 256 + 1 is 256. `others`: of ranks that hold the same parameters."""
    optimizer, weights = make(torch.bfloat16, {"matrix": (2, 2)}, Reduction(*others))
    for value in (256.0, 1.0, 1.0, -0.5):
        backward(weights["matrix"], value)
        optimizer.accumulate()
    gradient = optimizer.reduce()
    assert gradient.dtype == torch.float32
    assert gradient.tolist() == [257.5] * (4 // (1 + len(others)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_gradient_that_the_last_backward_makes_in_parts_leaves_with_all_of_them(dtype: torch.dtype) -> None:
    """As that of a tied head, where layers are recomputed. A second part would come behind the bucket of any other one."""
    for in_parts in (("tied",), ()):
        optimizer, weights = make(dtype, {"tied": (4, 2)}, Reduction(0.0), in_parts)
        optimizer.expect_last()
        (3 * weights["tied"]).sum().backward()  # type: ignore[no-untyped-call]
        with nullcontext() if in_parts else pytest.raises(RuntimeError, match="tied: a second gradient"):
            (4 * weights["tied"]).sum().backward()  # type: ignore[no-untyped-call]
        if in_parts:
            assert optimizer.reduce().tolist() == [7.0] * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_reduced_gradient_is_not_part_of_the_next_step(dtype: torch.dtype, filled_memory: None) -> None:
    optimizer, weights = make(dtype)
    for weight in weights.values():
        backward(weight, 2.0)
    optimizer.accumulate()
    assert optimizer.reduce().tolist() == [2.0] * 15
    assert optimizer.reduce().tolist() == [0.0] * 15


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("others", "own"), [((), 12), ((0.0,), 6)])
def test_a_parameter_without_a_gradient_counts_zeros(
    dtype: torch.dtype, others: tuple[float, ...], own: int, filled_memory: None
) -> None:
    """Also what goes to other owners is filled: nothing of the memory's last use leaves."""
    optimizer, weights = make(dtype, reduction=Reduction(*others))
    backward(weights["norm"], 2.0)
    optimizer.accumulate()
    assert optimizer.reduce().tolist() == [0.0] * own + [2.0] * (optimizer.elements - own)


@pytest.mark.parametrize(("values", "total"), [((1.0, 2.0, 4.0), 7.0), ((2.0**24, 1.0, -(2.0**24)), 0.0)])
def test_gradients_of_all_replicas_are_summed_in_replica_order(values: tuple[float, ...], total: float) -> None:
    """In fp32, (2^24 + 1) - 2^24 is 0, and 1 in any other order."""
    optimizer, weights = make(torch.float32, {"matrix": (6, 2)}, Reduction(*values[:-1]))
    backward(weights["matrix"], values[-1])
    assert optimizer.reduce().tolist() == [total] * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_five_updates_equal_those_of_torchs_adamw_on_the_masters(dtype: torch.dtype) -> None:
    """Matrices decay, norms do not; the weights are the masters in the dtype of the model."""
    config = replace(CONFIG, epsilon=0.01)  # torch's own default is too small to show
    optimizer, weights = make(dtype)
    theirs = {name: nn.Parameter(values) for name, values in masters(optimizer).items()}
    decays = [{"params": [theirs["matrix"]], "weight_decay": 0.5}, {"params": [theirs["norm"]], "weight_decay": 0.0}]
    adam = torch.optim.AdamW(decays, lr=0.1, betas=(config.beta1, config.beta2), eps=config.epsilon)
    generator = torch.Generator().manual_seed(1)
    for step in range(5):
        for name, weight in weights.items():
            weight.grad = torch.randn(weight.shape, generator=generator).to(dtype)
            theirs[name].grad = weight.grad.to(theirs[name].dtype)
        optimizer.accumulate()
        apply(optimizer, optimizer.reduce(), stats(norm=0.5), config, 0.1, step)
        adam.step()
    for name, values in masters(optimizer).items():
        assert torch.allclose(values, theirs[name].detach(), rtol=1e-6 if dtype == torch.bfloat16 else 1e-14, atol=0)
        assert torch.equal(weights[name].detach(), values.to(dtype))


def test_groups_scale_the_rate_and_set_the_decay_of_the_parameters_that_they_match() -> None:
    groups = (
        ParameterGroupConfig(match="b*", learning_rate_scale=0.25),
        ParameterGroupConfig(match="norm", weight_decay=0.3),
    )
    config, shapes = (
        replace(CONFIG, groups=groups),
        {"norm": (3,), "a": (4, 3), "b1": (2, 3), "b2": (1, 3), "c": (2, 2)},
    )
    optimizer, weights = make(torch.float64, shapes)
    theirs = {name: nn.Parameter(values) for name, values in masters(optimizer).items()}
    own = {"a": (0.1, 0.5), "b1": (0.025, 0.5), "b2": (0.025, 0.5), "c": (0.1, 0.5), "norm": (0.1, 0.3)}
    parts = [{"params": [theirs[n]], "lr": rate, "weight_decay": decay} for n, (rate, decay) in own.items()]
    adam = torch.optim.AdamW(parts, betas=(CONFIG.beta1, CONFIG.beta2), eps=CONFIG.epsilon)
    for step in range(3):
        for name, weight in weights.items():
            weight.grad = torch.sin(weight.detach() + step)
            theirs[name].grad = weight.grad.clone()
        apply(optimizer, optimizer.reduce(), stats(norm=0.5), config, 0.1, step)
        adam.step()
    assert all(torch.allclose(v, theirs[n].detach(), rtol=1e-14, atol=0) for n, v in masters(optimizer).items())


def test_an_update_too_small_for_bf16_stays_in_the_master() -> None:
    optimizer, weights = make(torch.bfloat16)
    before = weights["norm"].detach().clone()
    gradient = torch.ones(optimizer.elements)
    apply(optimizer, gradient, stats(norm=0.5), CONFIG, 1e-5, 0)
    assert torch.equal(weights["norm"].detach(), before)
    assert masters(optimizer)["norm"].tolist() == pytest.approx([0.5 - 1e-5, 1.0 - 1e-5, 1.5 - 1e-5], abs=1e-7)


@pytest.mark.parametrize(
    ("clip", "norm", "scale"),
    [(1.0, 1.0, 1.0), (1.0, 4.0, 1 / (4.0 + 1e-6)), (8.0, 4.0, 1.0), (0.0, 1e9, 1.0), (3.9, 4.0, 3.9 / (4.0 + 1e-6))],
)
def test_a_gradient_is_clipped_only_above_the_bound(clip: float, norm: float, scale: float) -> None:
    optimizer, _ = make(torch.float64, {"matrix": (2, 2)})
    apply(optimizer, torch.ones(4, dtype=torch.float64), stats(norm), replace(CONFIG, gradient_clip=clip), 0.1, 0)
    (moment,) = optimizer.boxes()["exp_avg"].values()
    assert torch.allclose(moment, torch.full_like(moment, (1 - CONFIG.beta1) * scale), rtol=1e-12, atol=0)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_is_refused_before_anything_changes(norm: float) -> None:
    optimizer, weights = make(torch.float64)
    before, kept = masters(optimizer), {name: weight.detach().clone() for name, weight in weights.items()}
    with pytest.raises(Refused, match=rf"step 7: gradient norm {norm}; lower optimizer.learningRate") as refused:
        apply(optimizer, torch.ones(15, dtype=torch.float64), stats(norm), CONFIG, 0.1, 7)
    assert refused.value.reason == "GradientNotFinite"
    assert all(torch.equal(values, before[name]) for name, values in masters(optimizer).items())
    assert all(torch.equal(weight.detach(), kept[name]) for name, weight in weights.items())


def test_a_rank_reports_its_loss_its_labels_its_plan_and_the_square_of_its_part_of_the_norm() -> None:
    reduction = Reduction()
    optimizer, _ = make(torch.float32, {"matrix": (2, 2)}, reduction)
    found = optimizer.reduce_stats(torch.tensor([1.0, 2.0, 2.0, 4.0]), RankStats(1.5, 4, 4, 7, (3 << 32) + 9))
    assert [norm_of([Square.of(row[:ROW])]) for row in reduction.rows] == [5.0]
    assert [row[ROW:] for row in reduction.rows] == [[1.5, 4.0, 7.0, 3.0, 9.0]]
    assert (found.norm, found.loss_sum, found.delivered) == (5.0, 1.5, (3 << 32) + 9)


def test_the_norm_the_loss_and_the_digest_of_a_step_are_over_all_ranks() -> None:
    half, none = float(1 << 31), Square().row()
    first, second = [*NINE, 1.5, 4.0, 7.0, half, half], [*SIXTEEN, 2.5, 6.0, 7.0, half, half]
    found = check_stats([first, second, [*none, 0.0, 0.0, 7.0, 1.0, half]], RankStats(1.5, 4, 10, 7))
    assert (found.norm, found.loss_sum) == (5.0, 4.0)
    assert found.delivered == (1 << 33) + (1 << 31)  # the low halves carry; modulo 2^64


@pytest.mark.parametrize("labels", [9, 11])
def test_more_or_fewer_labels_than_the_plans_discard_the_step(labels: int) -> None:
    with pytest.raises(Retryable, match=f"trained on {labels} labels, the plan has 10"):
        rows = [[*NINE, 0.0, 4.0, 7.0, 0.0, 0.0], [*NINE, 0.0, labels - 4.0, 7.0, 0.0, 0.0]]
        check_stats(rows, RankStats(0.0, 4, 10, 7))


@pytest.mark.parametrize("plan", [6.0, 8.0])
def test_a_rank_with_an_older_or_a_newer_plan_discards_the_step(plan: float) -> None:
    rows = [[*NINE, 0.0, labels, number, 0.0, 0.0] for labels, number in ((5.0, 7.0), (5.0, plan), (0.0, 7.0))]
    with pytest.raises(Retryable, match=r"ranks \[1\] followed another step plan than rank 0"):
        check_stats(rows, RankStats(0.0, 5, 10, 7))


def test_state_of_a_narrow_model_is_fp32_and_begins_at_zero() -> None:
    weights = {"w": nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))}
    state = Zero1Optimizer(weights, shards([(Holding(full_box("w", (2, 2))),)]), 0, Reduction()).boxes()
    for kind in ("parameter", "exp_avg", "exp_avg_sq"):
        assert state[kind][full_box("w", (2, 2))].dtype == torch.float32
        assert state[kind][full_box("w", (2, 2))].tolist() == [[0.0, 0.0], [0.0, 0.0]]
