"""The state that a worker keeps over successive worlds: its boxes, its memory, and another set of boxes in its place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coxswain.boxes import Box, full_box
from coxswain.holdings import Holding
from coxswain.shards import shards
from coxswain_train.parallel.state import KINDS, State
from coxswain_train.parallel.zero1 import Zero1Optimizer
from tests.unit.test_train_zero1 import Reduction

CPU = torch.device("cpu")
BOXES = (Box("w", (2, 0), (2, 3)), full_box("norm", (3,)))


def addresses(state: State) -> list[int]:
    return [values.data_ptr() for kind in KINDS for values in state.values(kind)]


def filled(*boxes: Box, value: float = 1.0) -> State:
    state = State()
    state.hold(boxes, torch.float32, CPU)
    fill(state, value)
    return state


def fill(state: State, value: float) -> None:
    for values in every(state):
        values.fill_(value)


def every(state: State, kinds: tuple[str, ...] = KINDS) -> list[Tensor]:
    return [values for kind in kinds for values in state.values(kind)]


def test_state_begins_with_zeros_in_every_box_of_every_kind() -> None:
    state = State()
    state.hold(BOXES, torch.float32, CPU)
    assert {kind: tuple(boxes) for kind, boxes in state.boxes().items()} == dict.fromkeys(KINDS, BOXES)
    assert all(not values.any() for boxes in state.boxes().values() for values in boxes.values())


def test_the_same_boxes_keep_their_memory_and_their_values() -> None:
    state = filled(*BOXES)
    before = addresses(state)
    state.hold(list(BOXES), torch.float32, CPU)
    assert addresses(state) == before
    assert all(values.eq(1.0).all() for values in every(state))


@pytest.mark.parametrize(
    ("boxes", "dtype", "kinds"),
    [
        (BOXES[::-1], torch.float32, KINDS),
        (BOXES[:1], torch.float32, KINDS),
        (BOXES, torch.float64, KINDS),
        (BOXES, torch.float32, KINDS[:2]),
    ],
)
def test_other_boxes_types_or_kinds_get_zeros(
    boxes: tuple[Box, ...], dtype: torch.dtype, kinds: tuple[str, ...]
) -> None:
    state = filled(*BOXES)
    state.hold(boxes, dtype, CPU, kinds)
    assert {kind: tuple(found) for kind, found in state.boxes().items()} == dict.fromkeys(kinds, boxes)
    assert all(values.dtype == dtype and not values.any() for values in every(state, kinds))


def test_a_value_written_into_a_box_is_where_its_place_among_all_elements_says() -> None:
    state = filled(*BOXES, value=0.0)
    state.boxes()["exp_avg"][BOXES[1]].copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert [values.flatten().tolist() for values in state.values("exp_avg")] == [[0.0] * 6, [1.0, 2.0, 3.0]]
    assert state.part("exp_avg", 7, 9).tolist() == [2.0, 3.0]
    assert [state.part("exp_avg", *ends).tolist() for ends in ((0, 6), (5, 6), (6, 7))] == [[0.0] * 6, [0.0], [1.0]]


def test_a_box_that_is_there_keeps_its_memory_and_values_beside_new_ones() -> None:
    before, after = filled(*BOXES), State()
    after.hold((full_box("v", (2,)), BOXES[1]), torch.float32, CPU, there=before.rooms())
    for number, kind in enumerate(KINDS):
        new, kept = after.values(kind)
        assert kept is before.rooms()[BOXES[1]][number] and kept.eq(1.0).all()
        assert not new.any()


def test_a_box_with_other_rows_of_the_same_parameter_is_not_the_one_that_is_there() -> None:
    before, after = filled(BOXES[0]), State()
    after.hold((Box("w", (0, 0), (2, 3)), Box("w", (2, 0), (1, 3))), torch.float32, CPU, there=before.rooms())
    assert not any(values.any() for values in every(after))
    assert not set(addresses(before)) & set(addresses(after))


def test_cleared_state_is_zero_in_the_same_memory() -> None:
    state = filled(*BOXES)
    before = addresses(state)
    state.clear()
    assert addresses(state) == before
    assert not any(values.any() for values in every(state))


def test_an_optimizer_of_the_next_world_finds_the_state_of_the_one_before_where_its_boxes_are_the_same() -> None:
    held = (Holding(full_box("w", (4, 3))),)
    state = State()
    for ranks, kept in ((1, 0.0), (1, 1.0), (2, 0.0), (2, 1.0)):
        weights = {"w": nn.Parameter(torch.zeros(4, 3))}
        optimizer = Zero1Optimizer(weights, shards([held] * ranks), ranks - 1, Reduction(*[0.0] * (ranks - 1)), state)
        assert optimizer.state is state
        optimizer.make_room()
        assert optimizer.elements == 12 // ranks
        assert all(values.eq(kept).all() for values in every(state))
        fill(state, 1.0)
