"""The state that a worker keeps over successive worlds: its boxes, its memory, and another set of boxes in its place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coxswain.boxes import Box, full_box
from coxswain.holdings import Holding
from coxswain_train.parallel.shards import shards
from coxswain_train.parallel.state import KINDS, State
from coxswain_train.parallel.zero1 import Zero1Optimizer
from tests.unit.test_train_zero1 import Reduction

CPU = torch.device("cpu")
BOXES = (Box("w", (2, 0), (2, 3)), full_box("norm", (3,)))


def addresses(state: State) -> list[int]:
    return [state[kind].data_ptr() for kind in KINDS]


def filled(*boxes: Box, value: float = 1.0) -> State:
    state = State()
    state.hold(boxes, torch.float32, CPU)
    for kind in KINDS:
        state[kind].fill_(value)
    return state


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
    assert all(state[kind].eq(1.0).all() for kind in KINDS)


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
    assert all(state[kind].dtype == dtype and not state[kind].any() for kind in kinds)


def test_a_value_written_into_a_box_is_in_the_flat_buffer_in_the_boxes_order() -> None:
    state = filled(*BOXES, value=0.0)
    state.boxes()["exp_avg"][BOXES[1]].copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert state["exp_avg"].tolist() == [0.0] * 6 + [1.0, 2.0, 3.0]


def test_cleared_state_is_zero_in_the_same_memory() -> None:
    state = filled(*BOXES)
    before = addresses(state)
    state.clear()
    assert addresses(state) == before
    assert all(not state[kind].any() for kind in KINDS)


def test_an_optimizer_of_the_next_world_finds_the_state_of_the_one_before_where_its_boxes_are_the_same() -> None:
    held = (Holding(full_box("w", (4, 3))),)
    state = State()
    for ranks, kept in ((1, 0.0), (1, 1.0), (2, 0.0), (2, 1.0)):
        weights = {"w": nn.Parameter(torch.zeros(4, 3))}
        optimizer = Zero1Optimizer(weights, shards([held] * ranks), ranks - 1, Reduction(*[0.0] * (ranks - 1)), state)
        assert optimizer.state is state
        optimizer.make_room()
        assert optimizer.elements == 12 // ranks
        assert state["exp_avg"].eq(kept).all()
        state["exp_avg"].fill_(1.0)
