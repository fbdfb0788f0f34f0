"""Moves of state between ranks: rounds of bounded size, few of them under way, small parts packed and large ones as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
import torch
from torch import Tensor

from coxswain.boxes import Box
from coxswain_train.live.copies import WINDOW_BYTES, Copies
from coxswain_train.live.moves import IN_FLIGHT, LARGE_BYTES, Move, Mover, bytes_of, rounds
from coxswain_train.model.ring import Message
from tests.distributed.cuts import run_cut
from tests.distributed.threads import ThreadWorld

KINDS = 3
CPU = torch.device("cpu")


def test_a_rank_sends_and_receives_at_most_64_mib_in_all_rounds_under_way_and_every_row_once() -> None:
    random, shapes = Random(0), {"a": (40_000, 4096), "b": (300_000,)}
    moves = [Move("a", 10_000 * i, 10_000 * (i + 1), 0, 4096, random.randrange(4), 4 + i % 2) for i in range(4)]
    moves += [Move("b", 0, 300_000, 0, 1, 0, 5), Move("b", 0, 300_000, 0, 1, 1, 4)]
    size = bytes_of(shapes, 12)
    found = rounds(moves, size)
    for under_way in pairwise(found):
        for end in ("sender", "receiver"):
            for rank in range(6):
                mine = [m for each in under_way for m in each if getattr(m, end) == rank]
                assert sum(m.elements * size[m.name] for m in mine) <= 64 << 20
    for whole in moves:
        parts = [m for each in found for m in each if (m.name, m.receiver) == (whole.name, whole.receiver)]
        rows = sorted(row for m in parts for row in range(m.first, m.last) if whole.first <= row < whole.last)
        assert rows == list(range(whole.first, whole.last))


@dataclass
class Recorder:
    """An exchange without peers: what is under way, and what went out."""

    sent: list[Tensor] = field(default_factory=list)
    under_way: int = 0
    most: int = 0

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Recorder:
        self.sent += [tensor for _, tensor in sends]
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        return self

    def wait(self) -> None:
        self.under_way -= 1


def test_a_copy_is_passed_on_in_messages_of_at_most_64_mib() -> None:
    exchange, elements = Recorder(), (200 << 20) // 4
    copies = Copies(exchange, 0, (1, 0), (elements, elements))
    copies.exchange(torch.empty(elements, device="meta"))
    sizes = [sent.nbytes for sent in exchange.sent]
    assert sum(sizes) == 200 << 20 and max(sizes) == WINDOW_BYTES == 64 << 20 and exchange.most == 1


def test_large_parts_are_sent_from_where_they_are_and_two_rounds_are_under_way_at_most() -> None:
    exchange, have = Recorder(), {Box("a", (0, 0), (1024, 1024)): [torch.zeros(1024, 1024)] * KINDS}
    mover = Mover(exchange, 0, 1, CPU)
    mover.run([[Move("a", first, first + 128, 0, 1024, 0, 1)] for first in range(0, 1024, 128)], have, {})
    (values, *_), *_ = have.values()
    inside = range(values.data_ptr(), values.data_ptr() + values.nbytes)
    large = [sent for sent in exchange.sent if sent.nbytes >= LARGE_BYTES]
    assert len(large) == 8 * KINDS and all(sent.data_ptr() in inside for sent in large)
    assert (exchange.most, exchange.under_way) == (IN_FLIGHT, 0)


def test_what_a_rank_keeps_is_copied_while_the_first_messages_are_under_way() -> None:
    """Behind them it would make the pause longer."""
    held, room, kept = torch.ones(4, 3), torch.zeros(8, 3), list[bool]()

    class Watcher(Recorder):
        def wait(self) -> None:
            kept.append(torch.equal(room[:4], held))
            super().wait()

    have, need = {Box("a", (0, 0), (4, 3)): [held]}, {Box("a", (0, 0), (8, 3)): [room]}
    Mover(Watcher(), 0, 1, CPU).run([[Move("a", 4, 8, 0, 3, 1, 0)]], have, need)
    assert kept == [True]


SHAPE = (24, 10)


def moved(world: ThreadWorld, large: int, dtype: torch.dtype, moves: Sequence[Move]) -> tuple[list[Tensor], list[str]]:
    """Rank 0 has everything; the others get what the moves name."""
    values = [(torch.arange(240).view(SHAPE) * (kind + 1)).to(dtype) for kind in range(KINDS)]
    box, room = Box("a", (0, 0), SHAPE), [torch.full(SHAPE, -1, dtype=dtype) for _ in range(KINDS)]
    mover = Mover(world.exchange((0, 1, 2)), world.rank, 7, CPU, large)
    mover.run([moves[:2], moves[2:]], *(({}, {box: room}) if world.rank else ({box: values}, {})))
    assert mover.received == sum(m.elements for m in moves if m.receiver == world.rank) * KINDS * values[0].itemsize
    return room, mover.faults


MOVES = [
    Move("a", 0, 24, 0, 4, 0, 1), Move("a", 3, 9, 0, 10, 0, 2), Move("a", 5, 18, 5, 9, 0, 1), Move("a", 20, 21, 9, 10, 0, 2),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("large", [0, 200, LARGE_BYTES], ids=["all large", "some large", "all small"])
def test_what_is_moved_arrives_whether_it_is_packed_or_sent_as_it_is(large: int, dtype: torch.dtype) -> None:
    whole = torch.arange(240).view(SHAPE)
    for rank, outcome in enumerate(run_cut(3, moved, large, dtype, MOVES)):
        assert outcome.error is None
        for kind, found in enumerate(outcome.result[0]):
            expected = torch.full(SHAPE, -1, dtype=dtype)
            for move in (m for m in MOVES if m.receiver == rank):
                at = slice(move.first, move.last), slice(move.left, move.right)
                expected[at] = (whole * (kind + 1)).to(dtype)[at]
            assert torch.equal(found, expected)
        assert outcome.result[1] == []


@pytest.mark.parametrize("large", [0, LARGE_BYTES], ids=["as it is", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_bit_that_changes_on_the_way_is_a_fault_of_that_message(large: int, dtype: torch.dtype) -> None:
    count = [0]

    def flip(lane: int, sent: Tensor) -> Tensor:
        mine = sent.dtype == (dtype if large == 0 else torch.uint8)
        count[0] += mine
        if mine and count[0] == 2:
            sent.view(-1).view(torch.uint8)[-3 if large == 0 else 40] ^= 4
        return sent

    faults = [outcome.result[1] for outcome in run_cut(3, moved, large, dtype, MOVES, change=flip)]
    assert sum(map(len, faults)) == 1, faults
