"""State on its way between ranks: every element once, in rounds of bounded size, with a digest for each message."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from coxswain.boxes import Box, full_box
from coxswain_train.live.copies import Copies
from coxswain_train.live.moves import Move, Mover, Rectangles, bytes_of, copy_inside, rounds
from coxswain_train.parallel.state import KINDS, State
from tests.unit.living_samples import CPU


def move(sender: int, receiver: int, rows: tuple[int, int] = (0, 4), columns: tuple[int, int] = (0, 5)) -> Move:
    return Move("a", *rows, *columns, sender, receiver)


@pytest.mark.parametrize("seed", range(6))
def test_every_element_moves_once_and_no_rank_sends_or_receives_more_than_a_window_in_a_round(seed: int) -> None:
    rng = random.Random(seed)
    moves = [move(*rng.sample(range(4), 2), (rng.randrange(5), rng.randrange(5, 40)), (0, rng.randint(1, 9)))
             for _ in range(20)]  # fmt: skip
    every, most = rounds(moves, {"a": 4}, 240), 240
    assert Counter(cells(moves)) == Counter(cells([part for each in every for part in each]))
    for each in every:
        assert each
        for end in ("sender", "receiver"):
            sums = Counter[int]()
            for part in each:
                sums[getattr(part, end)] += 4 * part.elements
            assert max(sums.values()) <= most


def cells(moves: Sequence[Move]) -> Iterator[tuple[int, ...]]:
    for m in moves:
        yield from ((m.sender, m.receiver, r, c) for r in range(m.first, m.last) for c in range(m.left, m.right))


def test_rounds_are_full_before_the_next_one_begins_and_ranks_without_a_peer_in_common_share_them() -> None:
    one = rounds([move(0, 1, (0, 10))], {"a": 2}, 40)  # a row has ten bytes
    assert [[(m.first, m.last) for m in each] for each in one] == [[(0, 4)], [(4, 8)], [(8, 10)]]
    assert [len(each) for each in rounds([move(0, 1), move(2, 3)], {"a": 2}, 40)] == [2]
    assert [len(each) for each in rounds([move(0, 1), move(0, 2)], {"a": 2}, 40)] == [1, 1]
    assert [len(each) for each in rounds([move(0, 2), move(1, 2)], {"a": 2}, 40)] == [1, 1]
    assert [len(each) for each in rounds([move(0, 1, (0, 2)), move(0, 1, (2, 4))], {"a": 2}, 40)] == [2]
    assert [len(each) for each in rounds([move(0, 1), move(1, 0)], {"a": 2}, 40)] == [2]
    # Rank 1 has more to take, or to give, than one round holds: what shares the second round counts there alone.
    late = rounds([move(2, 1, (0, 5)), move(0, 3, (0, 3)), move(0, 1, (0, 3))], {"a": 2}, 40)
    assert [[m.elements for m in each] for each in late] == [[20, 15], [5, 15]]
    late = rounds([move(1, 2, (0, 5)), move(3, 0, (0, 3)), move(1, 0, (0, 3))], {"a": 2}, 40)
    assert [[m.elements for m in each] for each in late] == [[20, 15], [5, 15]]
    wide = rounds([move(0, 1, (0, 2), (0, 100)), move(0, 1)], {"a": 2}, 40)  # a row is never cut
    assert [[m.elements for m in each] for each in wide] == [[100], [100], [20]]


def test_a_row_and_column_of_a_tensor_stand_for_all_of_its_further_dimensions() -> None:
    assert bytes_of({"a": (4,), "b": (4, 5), "c": (4, 5, 3, 2)}, 12) == {"a": 12, "b": 12, "c": 72}


def test_a_part_is_found_in_the_box_that_holds_all_of_it_and_in_no_other() -> None:
    low, high = Box("a", (0, 2), (4, 5)), Box("a", (4, 2), (4, 5))
    rooms = {low: [torch.zeros(4, 5)], high: [torch.arange(20.0).view(4, 5)], Box("b", (0, 2), (8, 5)): []}
    rectangles = Rectangles(rooms)
    (view,) = rectangles.views(move(0, 1, (5, 8), (3, 7)))
    assert torch.equal(view, rooms[high][0][1:4, 1:5])
    (view,) = rectangles.views(move(0, 1, (0, 4), (2, 7)))
    assert view.data_ptr() == rooms[low][0].data_ptr() and view.shape == (4, 5)
    for rows, columns in (((3, 5), (3, 7)), ((0, 4), (1, 7)), ((0, 4), (2, 8)), ((7, 9), (2, 7))):
        with pytest.raises(KeyError, match="is in no box of this rank"):
            rectangles.views(move(0, 1, rows, columns))


def test_a_vector_is_a_column() -> None:
    values = torch.arange(10.0)
    (view,) = Rectangles({Box("a", (3,), (10,)): [values]}).views(move(0, 1, (5, 7), (0, 1)))
    assert view.tolist() == [2.0, 3.0]


def test_what_a_rank_holds_of_what_it_needs_is_copied_and_nothing_else_changes() -> None:
    have = {Box("a", (0, 0), (4, 4)): [torch.arange(16.0).view(4, 4), torch.ones(4, 4)]}
    need = {Box("a", (2, 1), (4, 4)): [torch.zeros(4, 4), torch.zeros(4, 4)], Box("b", (0,), (3,)): [torch.zeros(3)]}
    copy_inside(have, need)
    first, second = need[Box("a", (2, 1), (4, 4))]
    assert torch.equal(first[:2, :3], torch.arange(16.0).view(4, 4)[2:, 1:]) and first[2:].count_nonzero() == 0
    assert first[:, 3].count_nonzero() == 0 and second.sum() == 6


def test_what_stays_in_its_memory_is_not_copied() -> None:
    """Most of a state stays: training would wait for a copy of it onto itself."""
    box = full_box("a", (4, 4))
    tensors = [torch.ones(4, 4), torch.ones(4, 4)]
    copy_inside({box: tensors}, {box: tensors})
    assert [tensor._version for tensor in tensors] == [0, 0]


class Post:
    """Stands in for the communicator of one rank: keeps what is sent, and delivers what it is given, call by call."""

    def __init__(self, arrives: Sequence[list[Tensor]] = ()) -> None:
        self.sent: list[list[tuple[int, Tensor]]] = []
        self._arrives = list(arrives)

    def start(self, sends: Any, receives: Any) -> Post:
        self.sent.append([(peer, tensor.clone()) for peer, tensor in sends])
        for (_, room), tensor in zip(receives, self._arrives.pop(0) if self._arrives else [], strict=True):
            room.copy_(tensor)
        return self

    def wait(self) -> None:
        pass


BOX = Box("a", (0, 0), (8, 5))


TWO_ROUNDS = [[move(0, 1, (0, 4))], [move(0, 1, (4, 8))]]


def sent() -> tuple[list[Tensor], Tensor, Tensor]:
    """Rank 0's messages, round by round, and the two tensors that they carry."""
    values, post = [torch.randn(8, 5), torch.randn(8, 5).double()], Post()
    Mover(post, 0, 7, CPU).run(TWO_ROUNDS, {BOX: values}, {})
    assert [[peer for peer, _ in call] for call in post.sent] == [[1], [1]]
    return [call[0][1] for call in post.sent], values[0], values[1]


def received(messages: Sequence[Tensor], generation: int = 7) -> tuple[Mover, list[Tensor]]:
    room = [torch.zeros(8, 5), torch.zeros(8, 5).double()]
    mover = Mover(Post([[message] for message in messages]), 1, generation, CPU)
    mover.run(TWO_ROUNDS, {}, {BOX: room})
    return mover, room


def test_messages_carry_all_tensors_of_a_part_and_the_receiver_counts_their_bytes() -> None:
    messages, first, second = sent()
    mover, room = received(messages)
    assert mover.faults == [] and mover.received == 40 * 4 + 40 * 8
    assert torch.equal(room[0], first) and torch.equal(room[1], second)


def test_a_message_of_another_round_or_generation_or_with_another_byte_is_a_fault() -> None:
    messages, _, _ = sent()
    assert len(received(messages[::-1])[0].faults) == 2
    assert len(received(messages, generation=6)[0].faults) == 2
    for at in (32, len(messages[1]) - 1, 16):
        changed = messages[1].clone()
        changed[at] ^= 1
        (fault,) = received([messages[0], changed])[0].faults
        assert fault.startswith("rank 0's message of round 1 says")


def test_a_message_of_fewer_values_than_its_receiver_lists_is_a_fault() -> None:
    """Three values of four bytes travel with zeros up to a multiple of eight, as many bytes as four of them."""
    box, post = Box("v", (0,), (4,)), Post()
    Mover(post, 0, 7, CPU).run([[Move("v", 0, 3, 0, 1, 0, 1)]], {box: [torch.ones(4)]}, {})
    receiver = Mover(Post([[tensor] for ((_, tensor),) in post.sent]), 1, 7, CPU)
    receiver.run([[Move("v", 0, 4, 0, 1, 0, 1)]], {}, {box: [torch.zeros(4)]})
    assert len(receiver.faults) == 1


@pytest.mark.parametrize("window_bytes", [8, 12, 40, 1 << 20])
def test_copies_pass_all_of_unequal_shards_in_windows(window_bytes: int) -> None:
    """Rank 0's ward is 1 and its holder 2."""
    mine, ward = torch.arange(7.0), torch.arange(100.0, 110.0)
    each = max(1, window_bytes // 4)
    arrives = [[ward[at : at + each]] for at in range(0, 10, each)]
    post = Post(arrives)
    copies = Copies(post, 0, (1, 2, 0), (7, 10, 3), window_bytes)
    found = copies.exchange(mine)
    assert found is not None and torch.equal(found, ward)
    sent = [message for messages in post.sent for message in messages]
    assert torch.equal(torch.cat([tensor for _, tensor in sent]), mine)
    assert {peer for peer, _ in sent} == {2}
    assert max(len(tensor) for _, tensor in sent) <= each and len(post.sent) == len(arrives)


def test_a_copy_is_filled_box_by_box_in_windows_of_at_most_so_many_bytes() -> None:
    """Boxes of 2, 3 and 9 elements of 4 bytes: no message is cut but where a box is larger than a window."""
    own, room = State(), State()
    for state in (own, room):
        state.hold([full_box(name, (size,)) for name, size in (("a", 2), ("b", 3), ("c", 9))], torch.float32, CPU)
    wanted = {kind: torch.arange(14.0) + 100 * number for number, kind in enumerate(KINDS)}
    cuts = [[(0, 2), (2, 5)], [(5, 11)], [(11, 14)]]
    post = Post([[wanted[kind][a:b] for a, b in window] for kind in KINDS for window in cuts])
    Copies(post, 0, (1, 2, 0), window=24).fill(own, room)
    for kind in KINDS:
        assert torch.equal(torch.cat(room.values(kind)), wanted[kind])
    assert [[len(tensor) for _, tensor in messages] for messages in post.sent] == [[2, 3], [6], [3]] * 3


def test_without_wards_nothing_is_sent_and_no_copy_is_there() -> None:
    copies = Copies(Post(), 0, ())
    assert copies.ward is None and copies.exchange(torch.ones(3)) is None
    assert copies.everyone.sent == []  # type: ignore[attr-defined]
