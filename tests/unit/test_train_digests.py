"""Digests of state and of messages: the same however state is cut, another where any value is another."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from coxswain.boxes import Box, full_box, window
from coxswain_train.live.claims import Content
from coxswain_train.live.digests import content_of, digest_of, halves, whole
from tests.unit.living_samples import MOST

MATRIX, VECTOR, KERNEL = full_box("a", (9, 14)), full_box("b", (23,)), full_box("c", (5, 6, 3))


def values_of(box: Box, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(box.shape, generator=torch.Generator().manual_seed(len(box.shape)), dtype=dtype)


def parts_of(box: Box, values: Tensor, rng: random.Random) -> Iterator[tuple[Box, Tensor]]:
    """The box cut in two in some dimension, and each part again, some times."""
    dimension, depth = rng.randrange(min(2, len(box.shape))), rng.random()
    if box.shape[dimension] < 2 or depth < 0.25:
        yield box, values
        return
    at = rng.randrange(1, box.shape[dimension])
    for start, stop in ((0, at), (at, box.shape[dimension])):
        offset, shape = list(box.offset), list(box.shape)
        offset[dimension], shape[dimension] = offset[dimension] + start, stop - start
        part = Box(box.name, tuple(offset), tuple(shape))
        yield from parts_of(part, values[window(box, part)].clone(), rng)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("box", [MATRIX, VECTOR, KERNEL], ids=["matrix", "vector", "kernel"])
def test_a_content_is_the_sum_of_the_contents_of_its_parts_however_it_is_cut(box: Box, dtype: torch.dtype) -> None:
    values, rng = values_of(box, dtype), random.Random(0)
    total = content_of({"exp_avg": {box: values}})
    assert 0 < total <= MOST
    for _ in range(8):
        parts = list(parts_of(box, values, rng))
        assert sum(content_of({"exp_avg": {part: held}}) for part, held in parts) % (MOST + 1) == total
        assert content_of({"exp_avg": dict(parts)}) == total


def test_a_content_of_a_tensor_that_is_summed_in_several_pieces_is_that_of_its_parts() -> None:
    for shape in ((3, 1 << 20), (1 << 12, 520), ((1 << 20) + 5,)):
        box = full_box("a", shape)
        values = torch.arange(box.elements, dtype=torch.float32).view(shape)
        low = Box("a", box.offset, (shape[0] - 1, *shape[1:]))
        high = Box("a", (shape[0] - 1, *box.offset[1:]), (1, *shape[1:]))
        parts = {part: values[window(box, part)] for part in (low, high)}
        assert content_of({"parameter": {box: values}}) == content_of({"parameter": parts})


class Reads(TorchDispatchMode):
    """Counts what the host reads of a device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_a_content_and_a_digest_are_read_once_however_many_pieces_they_have() -> None:
    """Each read waits for the device."""
    values = values_of(full_box("a", (600, 1000)))
    boxes = {box: values_of(box) for box in (MATRIX, VECTOR, KERNEL)} | {full_box("d", (600, 1000)): values}
    with Reads() as reads:
        assert content_of({"exp_avg": boxes}) and digest_of(values)
    assert reads.count == 2


def test_a_content_differs_where_any_value_is_another_or_at_another_place() -> None:
    values = values_of(MATRIX)
    seen = [content_of({"exp_avg": {MATRIX: values}})]
    for row, column in ((0, 0), (0, 13), (8, 0), (8, 13), (4, 7)):
        changed = values.clone()
        changed[row, column] *= 2
        moved = values.clone()
        moved[row, column], moved[5, 2] = values[5, 2], values[row, column]
        seen += [content_of({"exp_avg": {MATRIX: each}}) for each in (changed, moved)]
    seen += [content_of({"exp_avg": {MATRIX: each}}) for each in (values.flip(0), values.flip(1), values.roll(1, 1))]
    seen += [content_of({kind: {replace_box(MATRIX, **at): values}}) for kind, at in ELSEWHERE]
    assert len(set(seen)) == len(seen)


ELSEWHERE: list[tuple[str, dict[str, Any]]] = [
    ("exp_avg_sq", {}), ("exp_avg", {"name": "b"}), ("exp_avg", {"offset": (1, 0)}), ("exp_avg", {"offset": (0, 1)}),
]  # fmt: skip


def replace_box(box: Box, name: str = "a", offset: tuple[int, ...] = (0, 0)) -> Box:
    return Box(name, offset, box.shape)


@pytest.mark.parametrize("words", [1, 5, (1 << 20) + 3])
def test_a_message_has_another_digest_where_any_byte_is_another_or_two_words_change_places(words: int) -> None:
    message = torch.arange(1, words + 1, dtype=torch.int64) * 0x123456789
    seen, right = [], digest_of(message.view(torch.uint8))
    for at in {0, words // 2, words - 1}:
        for byte in (0, 7):
            changed = message.clone()
            changed.view(torch.uint8)[8 * at + byte] ^= 128
            seen.append(digest_of(changed.view(torch.uint8)))
    places = {(0, words - 1), (words // 2, words - 1), (0, min(words - 1, 1 << 20))} - {(0, 0)}
    for one, other in places:
        moved = message.clone()
        moved[one], moved[other] = message[other], message[one]
        seen.append(digest_of(moved.view(torch.uint8)))
    assert right not in seen and seen
    assert all(-(1 << 63) <= each < 1 << 63 for each in seen)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_two_signs_that_change_do_not_cancel(dtype: torch.dtype) -> None:
    values = torch.randn(MATRIX.shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    changed = values.clone()
    changed[0, :2] *= -1
    assert content_of({"exp_avg": {MATRIX: changed}}) != content_of({"exp_avg": {MATRIX: values}})
    assert digest_of(changed) != digest_of(values)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16], ids=str)
def test_a_message_whose_bits_are_all_turned_has_another_digest(dtype: torch.dtype) -> None:
    message = torch.tensor([0x0123], dtype=dtype)
    assert digest_of(~message) != digest_of(message)


def test_a_content_that_is_known_is_not_computed_again() -> None:
    """A change of layout asks for the content before and behind its moves, and most boxes stay."""
    values, known = values_of(MATRIX), dict[tuple[str, Box], list[Tensor]]()
    before = content_of({"exp_avg": {MATRIX: values}}, known)
    parts = known["exp_avg", MATRIX]
    known["exp_avg", MATRIX] = [2 * part for part in parts]
    both = {"exp_avg": {MATRIX: values}, "exp_avg_sq": {MATRIX: values}}
    alone = content_of({"exp_avg_sq": {MATRIX: values}})
    assert content_of(both, known) == (2 * before + alone) % (MOST + 1)


@pytest.mark.parametrize("value", [0, 1, MOST, 1 << 63, (1 << 53) + 1, 0xFFFFFFFF, 1 << 32])
def test_a_digest_travels_as_two_numbers_that_are_held_exactly(value: int) -> None:
    assert whole(*halves(value)) == value == whole(*map(float, halves(value)))
    assert whole(*halves(value - MOST - 1)) == value  # signed
    content = Content(value, MOST - value, value ^ 7, 1)
    assert Content.of(content.row()) == content
