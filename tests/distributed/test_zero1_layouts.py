"""Gradients to owners and weights to holders in any layout, with ranks as threads, against sums made element by element."""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coxswain.boxes import Box, full_box, intersect, window
from coxswain.holdings import Holding, all_holdings
from coxswain.layout import Layout
from coxswain.shards import Shards, shards
from coxswain_train.parallel.grid import FLAT_RANKS, Grid
from coxswain_train.parallel.process_groups import ProcessGroups, hop_groups
from coxswain_train.parallel.zero1 import Zero1Optimizer
from tests.distributed.ranks import run_ranks
from tests.distributed.threads import ThreadWorld, run_threads
from tests.layouts import LAYERS, SPECS, layout_of, random_layout

SHAPES = {spec.name: spec.shape for spec in SPECS}
Held = Sequence[tuple[Holding, ...]]


def holdings_of(layout: Layout) -> Held:
    return list(all_holdings(SPECS, layout, LAYERS))


@functools.cache
def gradient_of(rank: int, box: Box) -> Tensor:
    """A rank's gradient: fp32 numbers of many magnitudes, so that another order of the sum shows."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{rank} {box.name}".encode()))
    return torch.randn(box.shape, generator=generator) * 10 ** (3 * torch.rand(box.shape, generator=generator))


def expected(held: Held, box: Box, grid: Grid) -> Tensor:
    """The sum over all holders that count, by rows of ranks, element by element."""
    totals = []
    for row in range(len(grid.starts)):
        total = None
        for rank in grid.row(row):
            for holding in held[rank]:
                if holding.counts and intersect(holding.box, box) is not None:
                    part = gradient_of(rank, holding.box)[window(holding.box, box)]
                    total = part.clone() if total is None else total + part
        totals += [] if total is None else [total]
    whole = totals[0]
    for total in totals[1:]:
        whole = whole + total
    return whole


def exchange(
    world: ThreadWorld | ProcessGroups,
    owners: Shards,
    held: Held,
    bucket_bytes: int,
    idle: Sequence[int],
    dtype: torch.dtype,
) -> tuple[dict[Box, Tensor], dict[str, Tensor]]:
    """One step's gradients on this rank, with the hooks of a real last backward; then weights named by their place."""
    weights = {h.box.name: nn.Parameter(torch.zeros(h.box.shape, dtype=dtype)) for h in held[world.rank]}
    optimizer = Zero1Optimizer(weights, owners, world.rank, world, bucket_bytes=bucket_bytes)
    optimizer.expect_last()
    if world.rank not in idle:
        gradients = [gradient_of(world.rank, h.box).to(dtype) for h in held[world.rank]]
        sum((w * g).sum() for w, g in zip(weights.values(), gradients, strict=True)).backward()
    total = optimizer.reduce()
    boxes = owners.boxes(world.rank)
    parts = torch.split(total, [box.elements for box in boxes])
    for box, values in optimizer.boxes()["parameter"].items():
        values.copy_(places(box))
    optimizer.all_gather()
    summed = {box: part.view(box.shape) for box, part in zip(boxes, parts, strict=True)}
    return summed, {name: weight.detach() for name, weight in weights.items()}


def places(box: Box) -> Tensor:
    """Each element's number in the whole parameter."""
    whole = full_box(box.name, SHAPES[box.name])
    return torch.arange(whole.elements, dtype=torch.float32).view(whole.shape)[window(whole, box)]


def exchange_by_processes(world: ProcessGroups, owners: Shards, held: Held) -> list[tuple[list[Tensor], list[Tensor]]]:
    """In one hop over the world's own group, then in two over a row and a column."""
    found = []
    for grid in (world.grid, Grid(world.ranks, 2)):
        world.grid = grid
        world.hops = hop_groups(grid, world.rank) if grid.hops == 2 else ()
        summed, weights = exchange(world, owners, held, 256, (), torch.float32)
        found.append((list(summed.values()), list(weights.values())))
    return found


CASES = {
    "one device": [[(1, 4)]],
    "two replicas": [[(1, 4)], [(1, 4)]],
    "stages": [[(1, 2), (1, 4)]],
    "tensor": [[(4, 4)]],
    "unequal degrees": [[(2, 4)], [(1, 4)], [(4, 4)]],
    "unequal stages": [[(1, 1), (1, 4)], [(1, 3), (1, 4)], [(1, 4)]],
    "both": [[(2, 1), (1, 4)], [(4, 3), (2, 4)], [(1, 4)]],
}
UNIFORM = {f"{n} replicas": layout_of(*[[(1, LAYERS)]] * n) for n in (70, 256)}
RANDOM = {f"random {seed}": random_layout(random.Random(seed), 3, (1, 2, 4)) for seed in range(3)}
LAYOUTS = {name: layout_of(*replicas) for name, replicas in CASES.items()} | RANDOM


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("bucket_bytes", "flat_ranks"), [(1000, FLAT_RANKS), (1100, 3)])
def test_owners_get_the_sum_of_what_counts_in_rank_order_and_holders_their_weights(
    name: str, bucket_bytes: int, flat_ranks: int
) -> None:
    held = holdings_of(LAYOUTS[name])
    owners, grid = shards(held), Grid(len(held), flat_ranks)
    found = run_threads(len(held), exchange, owners, held, bucket_bytes, (), torch.float32, flat_ranks=flat_ranks)
    assert sum(box.elements for summed, _ in found for box in summed) == sum(np.prod(s) for s in SHAPES.values())
    for summed, _ in found:
        assert all(torch.equal(values, expected(held, box, grid)) for box, values in summed.items())
    for rank, (_, weights) in enumerate(found):
        assert all(torch.equal(weights[h.box.name], places(h.box)) for h in held[rank])


@pytest.mark.parametrize("name", ["70 replicas", pytest.param("256 replicas", marks=pytest.mark.slow)])
def test_above_64_ranks_sums_go_by_rows_of_ranks_in_a_fixed_order(name: str) -> None:
    held = holdings_of(UNIFORM[name])
    owners, grid = shards(held), Grid(len(held))
    assert len(grid.starts) == {70: 8, 256: 16}[len(held)]
    found = run_threads(len(held), exchange, owners, held, 1 << 20, (), torch.float32)
    for summed, _ in found:
        assert all(torch.equal(values, expected(held, box, grid)) for box, values in summed.items())
    assert all(torch.equal(weights["tied"], places(full_box("tied", SHAPES["tied"]))) for _, weights in found)


def test_processes_exchange_as_threads_do_in_one_hop_and_in_two() -> None:
    held = holdings_of(LAYOUTS["unequal stages"])
    owners = shards(held)
    found = run_ranks(len(held), exchange_by_processes, owners, held)
    for which, flat_ranks in enumerate((FLAT_RANKS, 2)):
        threads = run_threads(len(held), exchange, owners, held, 256, (), torch.float32, flat_ranks=flat_ranks)
        for (summed, weights), by_hops in zip(threads, found, strict=True):
            for ours, theirs in zip((summed, weights), by_hops[which], strict=True):
                assert all(torch.equal(a, b) for a, b in zip(ours.values(), theirs, strict=True))


@pytest.mark.parametrize("flat_ranks", [FLAT_RANKS, 3])
def test_a_rank_without_tasks_adds_zeros_and_gets_its_weights(flat_ranks: int) -> None:
    held = holdings_of(LAYOUTS["both"])
    owners, idle = shards(held), [0, 4]
    found = run_threads(len(held), exchange, owners, held, 256, idle, torch.float32, flat_ranks=flat_ranks)
    without = [tuple(Holding(h.box, h.counts and rank not in idle) for h in each) for rank, each in enumerate(held)]
    for rank, (summed, weights) in enumerate(found):
        for box, values in summed.items():
            assert torch.equal(values, expected(without, box, Grid(len(held), flat_ranks)))
        assert all(torch.equal(weights[h.box.name], places(h.box)) for h in held[rank])


def test_bf16_gradients_are_added_up_in_fp32() -> None:
    held = holdings_of(LAYOUTS["unequal stages"])
    owners = shards(held)
    found = run_threads(len(held), exchange, owners, held, 256, (), torch.bfloat16)
    for box, values in found[0][0].items():
        assert values.dtype == torch.float32
        assert torch.allclose(values, expected(held, box, Grid(len(held))), rtol=0.02, atol=10)
        assert not torch.equal(values, values.bfloat16().float()) or box.elements < 8
