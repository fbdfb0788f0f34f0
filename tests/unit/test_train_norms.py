"""The gradient norm: exact, and the same however rows are shared."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from coxswain.boxes import Box
from coxswain_train.parallel.norms import Square, norm_of, runs_of, square_of

SHAPES = {"wide": (40, 256), "odd": (30, 7), "narrow": (50, 24), "vector": (300,)}


def gradients(dtype: torch.dtype, seed: int, spread: float) -> dict[str, torch.Tensor]:
    """Of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in SHAPES.items():
        sizes = torch.exp2(torch.randn(shape, generator=generator) * spread)
        found[name] = (torch.randn(shape, generator=generator) * sizes).to(dtype)
    return found


def dealt(values: dict[str, torch.Tensor], rng: random.Random, ranks: int) -> list[Square]:
    """The rows of every tensor, shared by chance among ranks that keep tensors in another order."""
    owned: list[list[tuple[Box, torch.Tensor]]] = [[] for _ in range(ranks)]
    for name in rng.sample(list(values), len(values)):
        tensor = values[name]
        cuts = sorted([0, len(tensor), *(rng.randint(0, len(tensor)) for _ in range(ranks - 1))])
        for rank, (first, last) in enumerate(itertools.pairwise(cuts)):
            if last > first:
                part = tensor[first:last]
                owned[rank].append((Box(name, (first,) + (0,) * (part.ndim - 1), tuple(part.shape)), part))
    squares = []
    for mine in owned:
        flat = torch.cat([part.reshape(-1) for _, part in mine] or [torch.zeros(0)])
        squares.append(Square.of(square_of(flat, runs_of([box for box, _ in mine])).row()))
    return squares


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [0.0, 3.0, 12.0])
def test_a_norm_has_the_same_bits_however_rows_are_owned(dtype: torch.dtype, spread: float) -> None:
    for seed in range(5):
        values, rng = gradients(dtype, seed, spread), random.Random(seed)
        norms = {norm_of(dealt(values, rng, ranks)) for ranks in (1, 2, 3, 5, 8)}
        exact = math.sqrt(math.fsum(float(x) ** 2 for tensor in values.values() for x in tensor.reshape(-1)))
        assert len(norms) == 1
        assert norms.pop() == pytest.approx(exact, rel=1e-15, abs=0)


@pytest.mark.parametrize("scale", [1e-40, 1e-20, 1.0, 1e20, 1e37])
def test_a_norm_is_exact_at_any_scale_of_fp32(scale: float) -> None:
    values = torch.tensor([3.0, 4.0]) * scale
    assert norm_of([square_of(values, [(0, 2, 1)])]) == pytest.approx(
        5 * scale, rel=1e-4 if scale < 1e-37 else 1e-7, abs=0
    )


@pytest.mark.parametrize("scale", [1e-60, 1.0, 1e60, 1e120])
def test_a_norm_is_the_same_whichever_rank_comes_first_and_where_one_owns_nothing(scale: float) -> None:
    parts = [torch.tensor(x, dtype=torch.float64) for x in ([3.0 * scale], [4.0 * scale], [1e-9 * scale])]
    squares = [square_of(part, [(0, 1, 1)]) for part in parts] + [Square()]
    norms = {norm_of(order) for order in itertools.permutations(squares)}
    assert len(norms) == 1
    assert norms.pop() == pytest.approx(5 * scale, rel=1e-15, abs=0)


@pytest.mark.parametrize("scale", [1e-4, 1e-9, 1e-18])
def test_a_rank_whose_rows_have_no_gradient_changes_no_bit_of_the_norm(scale: float) -> None:
    """As of words that a step does not have."""
    values = torch.randn(1024, generator=torch.Generator().manual_seed(1)) * scale
    runs = [(0, len(values), 64)]
    alone, beside = square_of(values, runs), square_of(torch.zeros_like(values), runs)
    assert (
        norm_of([alone, beside]) == norm_of([alone]) == pytest.approx(float(values.double().norm()), rel=1e-15, abs=0)
    )


def test_a_gradient_of_zeros_has_no_norm() -> None:
    assert norm_of([square_of(torch.zeros(5), [(0, 5, 1)]), Square()]) == 0.0


@pytest.mark.parametrize(
    ("bad", "norm"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "inf"), (1e160, "inf"), (1e300, "inf")]
)
def test_a_norm_that_is_not_finite_or_overflows_is_said_to_be_so(bad: float, norm: str) -> None:
    values = torch.ones(100, dtype=torch.float64)
    values[70] = bad
    squares = [Square.of(square_of(values, [(0, 100, 1)]).row()), square_of(torch.ones(3), [(0, 3, 1)])]
    assert str(norm_of(squares)) == norm


def test_a_sum_of_many_large_leaves_is_exact() -> None:
    """More of them than fp64 adds up exactly; all are odd, and so is the sum."""
    leaves, value = (1 << 19) + 1, 185_363
    square = square_of(torch.full((leaves,), value, dtype=torch.float64), [(0, leaves, 1)])
    assert (square.top, square.counts) == (0, (leaves * value**2, 0, 0))


def test_no_leaf_reaches_into_the_next_row_of_its_box() -> None:
    shapes = [(30, 7), (5, 64), (5, 96), (3, 1), (4, 2, 48), (64,), (2, 256), (8, 33)]
    boxes = [Box(str(n), (0,) * len(shape), shape) for n, shape in enumerate(shapes)]
    runs = runs_of(boxes)
    assert [(start, stop) for start, stop, _ in runs] == [*itertools.pairwise([0, *(stop for _, stop, _ in runs)])]
    begin = 0
    for box in boxes:
        leaf = next(leaf for start, stop, leaf in runs if start <= begin < stop)
        assert (box.elements // box.shape[0]) % leaf == 0, box
        begin += box.elements
    assert runs[-1][1] == begin
