"""What the exchange of a step takes beside weights and state: bytes a parameter, and operators whatever the number of owners."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from types import FrameType

import pytest
import torch
from torch import Tensor, nn

from coxswain.config import OptimizerConfig
from coxswain.holdings import ParameterSpec, all_holdings
from coxswain.layout import Layout
from coxswain.shards import shards
from coxswain_train.parallel.flights import IN_FLIGHT
from coxswain_train.parallel.grid import Grid
from coxswain_train.parallel.zero1 import GlobalStats, RankStats, Zero1Optimizer
from tests.distributed.live_bytes import peak_bytes
from tests.layouts import layout_of
from tests.updates import apply

DEPTH = 32
SPECS = tuple(
    spec
    for layer in range(DEPTH)
    for spec in (
        ParameterSpec(f"{layer}.up", (128, 64), layer, split=0),
        ParameterSpec(f"{layer}.down", (64, 128), layer, split=1),
        ParameterSpec(f"{layer}.norm", (64,), layer),
    )
)
CONFIG = OptimizerConfig(learning_rate=0.1, weight_decay=0.5, gradient_clip=1.0)


class Silent:
    """A world in which nothing arrives. Exchanges end at once, or (`late`) only when they are waited for."""

    def __init__(self, ranks: int, late: bool = False) -> None:
        self.grid, self._late, self.exchanges = Grid(ranks), late, 0
        self.peers: set[tuple[int, int]] = set()

    def all_to_all(self, received: Tensor, sent: Tensor, receives: list[int], sends: list[int], hop: int) -> Silent:
        assert (received.numel(), sent.numel()) == (sum(receives), sum(sends))
        self.exchanges += 1
        self.peers |= {(hop, peer) for peer, (a, b) in enumerate(zip(receives, sends, strict=True)) if a or b}
        received.zero_()
        return self

    def is_completed(self) -> bool:
        return not self._late

    def wait(self) -> None: ...

    def scalars(self, mine: list[float]) -> list[list[float]]:
        return [mine]


class Recorded(Silent):
    """Keeps the sizes of what was sent."""

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks)
        self.sent: list[int] = []

    def all_to_all(self, received: Tensor, sent: Tensor, receives: list[int], sends: list[int], hop: int) -> Silent:
        self.sent.append(sent.numel())
        return super().all_to_all(received, sent, receives, sends, hop)


class Wandering(Silent):
    """Keeps hop and size of each exchange. An exchange has ended, or has not, by a draw at each look."""

    def __init__(self, ranks: int, seed: int) -> None:
        super().__init__(ranks)
        self.order: list[tuple[int, int]] = []
        self._draw = random.Random(seed)

    def all_to_all(self, received: Tensor, sent: Tensor, receives: list[int], sends: list[int], hop: int) -> Silent:
        self.order.append((hop, sent.numel()))
        return super().all_to_all(received, sent, receives, sends, hop)

    def is_completed(self) -> bool:
        return self._draw.random() < 0.5


def rank_of(
    layout: Layout, dtype: torch.dtype, reduction: Silent, bucket_bytes: int, specs: Iterable[ParameterSpec] = SPECS
) -> tuple[Zero1Optimizer, dict[str, nn.Parameter]]:
    held = list(all_holdings(list(specs), layout, DEPTH))
    me = len(held) - 1
    weights = {h.box.name: nn.Parameter(torch.zeros(h.box.shape, dtype=dtype)) for h in held[me]}
    return Zero1Optimizer(weights, shards(held), me, reduction, bucket_bytes=bucket_bytes), weights


def step(optimizer: Zero1Optimizer, weights: dict[str, nn.Parameter]) -> None:
    """Two backwards, reduction and update."""
    for last in (False, True):
        if last:
            optimizer.expect_last()
        sum(weight.sum() for weight in weights.values()).backward()  # type: ignore[union-attr]
        optimizer.accumulate()
    gradient = optimizer.reduce()
    stats = optimizer.reduce_stats(gradient, RankStats(0.0, 1, 1, 1))
    apply(optimizer, gradient, stats, CONFIG, 0.1, 0)


LAYOUTS = {
    "one device": layout_of([(1, DEPTH)]),
    "two replicas": layout_of([(1, DEPTH)], [(1, DEPTH)]),
    "eight replicas": layout_of(*[[(1, DEPTH)]] * 8),
    "100 replicas": layout_of(*[[(1, DEPTH)]] * 100),
    "tensor 4": layout_of([(4, DEPTH)]),
    "tensor 2 and stages 2, twice": layout_of(*[[(2, DEPTH // 2), (2, DEPTH)]] * 2),
    "degrees 1 and 2": layout_of([(1, DEPTH)], [(2, DEPTH)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_gradients_take_at_most_six_bytes_a_parameter(name: str, late: bool, dtype: torch.dtype) -> None:
    """Beside weights and state, from the first backward to the new weights. Buckets are a 64th of the gradients."""
    layout = LAYOUTS[name]
    reduction = Silent(len(layout.ranks()), late)
    elements = sum(spec.box(0, len(layout.replicas[-1].stages[-1].devices)).elements for spec in SPECS)
    elements //= len(layout.replicas[-1].stages)
    optimizer, weights = rank_of(layout, dtype, reduction, 4 * elements // 64)
    assert sum(weight.numel() for weight in weights.values()) == elements
    peak = peak_bytes(lambda: step(optimizer, weights))
    print(f"{name}, {dtype}, late {late}: {peak / elements:.2f} bytes a parameter")
    assert 4 * elements < peak <= 6 * elements


def test_the_order_of_exchanges_is_the_same_whenever_they_end() -> None:
    """Rows and columns are communicators of their own: NCCL may hang where two ranks begin on them in different orders."""
    layout, orders = LAYOUTS["100 replicas"], set()
    for seed in range(20):
        reduction = Wandering(100, seed)
        step(*rank_of(layout, torch.float32, reduction, 4 << 14))
        orders.add(tuple(reduction.order))
    assert {hop for order in orders for hop, _ in order} == {0, 1}
    assert len(orders) == 1


def python_calls(optimizer: Zero1Optimizer, weights: dict[str, nn.Parameter]) -> int:
    """Calls of functions, Python's and C's, from a step's first gradient to the new weights."""
    count = 0

    def on_event(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    for weight in weights.values():
        weight.grad = torch.ones_like(weight)
    sys.setprofile(on_event)
    try:
        gradient = optimizer.reduce()
        apply(optimizer, gradient, GlobalStats(0.0, 1.0), CONFIG, 0.1, 0)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("ranks", [8, 64, 256, 1024])
def test_a_step_takes_some_calls_a_tensor_and_some_a_peer_but_none_for_each_pair_of_them(ranks: int) -> None:
    """A loop over owners and tensors would take 98,304 turns at 1,024 owners."""
    reduction = Silent(ranks)
    optimizer, weights = rank_of(layout_of(*[[(1, DEPTH)]] * ranks), torch.float32, reduction, 25 << 20)
    calls, peers = python_calls(optimizer, weights), len(reduction.peers)
    print(f"{ranks} owners, {len(weights)} tensors, {peers} peers: {calls} calls, {reduction.exchanges} exchanges")
    assert calls <= 40 * len(weights) + 25 * peers * reduction.exchanges


@pytest.mark.parametrize(("ranks", "peers"), [(64, 64), (65, 18), (100, 20), (256, 32), (1000, 66), (1024, 64)])
def test_above_64_ranks_a_rank_exchanges_with_about_twice_the_square_root_of_them(ranks: int, peers: int) -> None:
    grid = Grid(ranks)
    found = [
        len(grid.row(grid.row_of(rank))) + (len(grid.column(grid.column_of(rank))) if grid.hops == 2 else 0)
        for rank in range(ranks)
    ]
    assert max(found) <= peers


def chain(weights: dict[str, nn.Parameter], depth: int = DEPTH) -> Tensor:
    """Layers one after the other, so that a backward makes the last one's gradients first."""
    x = torch.ones(2, 64)
    for layer in range(depth):
        up, down, norm = (weights[f"{layer}.{kind}"] for kind in ("up", "down", "norm"))
        x = (x * norm) @ up.T @ down.T
    return x.sum()


@pytest.mark.parametrize(("expected", "late", "most"), [(True, False, 100), (True, True, IN_FLIGHT), (False, False, 0)])
def test_buckets_leave_in_the_last_backward_only_and_few_wait_for_peers(expected: bool, late: bool, most: int) -> None:
    reduction = Silent(2, late)
    optimizer, weights = rank_of(layout_of([(1, DEPTH)], [(1, DEPTH)]), torch.float32, reduction, 100_000)
    begun = []
    weights["1.up"].register_post_accumulate_grad_hook(lambda _: begun.append(reduction.exchanges))
    if expected:
        optimizer.expect_last()
    chain(weights).backward()
    optimizer.reduce()
    assert min(most, 4) <= begun[0] <= most
    assert reduction.exchanges > 10


def test_a_second_gradient_after_its_bucket_has_left_is_an_error_by_name() -> None:
    reduction = Silent(2)
    optimizer, weights = rank_of(layout_of([(1, DEPTH)], [(1, DEPTH)]), torch.float32, reduction, 100_000)
    optimizer.expect_last()
    chain(weights).backward()
    with pytest.raises(RuntimeError, match=r"31\.down: a second gradient in the step's last backward"):
        weights["31.down"].sum().backward()


def test_buckets_leave_in_one_order_whatever_the_order_of_the_backward() -> None:
    sizes = []
    for backward in (
        lambda w: chain(w).backward(),
        lambda w: None,
        lambda w: sum(x.sum() for x in w.values()).backward(),
    ):
        reduction = Recorded(2)
        optimizer, weights = rank_of(layout_of([(1, DEPTH)], [(1, DEPTH)]), torch.float32, reduction, 100_000)
        optimizer.expect_last()
        backward(weights)
        optimizer.reduce()
        sizes.append(reduction.sent)
    assert sizes[0] == sizes[1] == sizes[2]
    assert len(set(sizes[0])) > 1
