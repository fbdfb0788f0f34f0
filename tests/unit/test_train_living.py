"""Parts of a change of layout, each alone: digests of state, claims of ranks, rounds of messages, and what a worker holds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from coxswain.boxes import Box, full_box, window
from coxswain.config import OptimizerConfig
from coxswain.errors import Refused, Retryable
from coxswain.layout import Device, uniform_layout
from coxswain.live import Held, Holder, LiveSource
from coxswain_train.live.claims import Claim, Content, NotHeld, check_claims, check_contents, check_moved
from coxswain_train.live.copies import Copies
from coxswain_train.live.digests import content_of, digest_of, halves, whole
from coxswain_train.live.moves import Move, Mover, Rectangles, bytes_of, copy_inside, rounds
from coxswain_train.live.state import Cut, Finished, LiveState, PendingStep
from coxswain_train.parallel.state import KINDS, State
from coxswain_train.parallel.zero1 import GlobalStats

CPU = torch.device("cpu")
MOST = (1 << 64) - 1


# --- digests ----------------------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("value", [0, 1, MOST, 1 << 63, (1 << 53) + 1, 0xFFFFFFFF, 1 << 32])
def test_a_digest_travels_as_two_numbers_that_are_held_exactly(value: int) -> None:
    assert whole(*halves(value)) == value == whole(*map(float, halves(value)))
    assert whole(*halves(value - MOST - 1)) == value  # signed
    content = Content(value, MOST - value, value ^ 7, 1)
    assert Content.of(content.row()) == content


# --- claims -----------------------------------------------------------------------------------------------------------

GENERATION, STEP = 4, 8
LAYOUT = uniform_layout([Device(t, 0) for t in range(3)], layers=1)
OWNERS = tuple(Holder(rank, rank) for rank in range(3))
SOURCE = LiveSource(GENERATION, LAYOUT, STEP, OWNERS)
DONE = Claim(GENERATION, -1, STEP, -1, agreed=STEP - 1, norm=2.5, loss_sum=7.0)
BEHIND = replace(DONE, step=STEP - 1, reduced=1.0, agreed=-1, norm=0.0, loss_sum=0.0)


def claims_of(*claims: Claim) -> list[Claim]:
    return [replace(claim, rank=rank) if claim.rank == -1 else claim for rank, claim in enumerate(claims)]


def state_of(fill: float = 0.0) -> State:
    state = State()
    state.hold([Box("a", (0, 0), (2, 3))], torch.float32, CPU)
    for kind in KINDS:
        state[kind].fill_(fill)
    return state


def pending(step: int, agreed: GlobalStats | None = None) -> PendingStep:
    return PendingStep(step, torch.ones(6), None, 1.5, agreed)


STATS = GlobalStats(7.0, 2.5)


@pytest.mark.parametrize(
    ("cut", "weights", "claim"),
    [
        (None, True, Claim()),
        (Cut(4, 1, 8, state_of()), False, Claim(4, 1, 8)),
        (Cut(4, 1, 8, state_of(), ward=0), True, Claim(4, 1, 8, 0, weights=1)),
        (Cut(4, 1, 8, state_of(), agreed=STATS), False, Claim(4, 1, 8, agreed=7, norm=2.5, loss_sum=7.0)),
        (Cut(4, 1, 8, state_of(), pending=pending(8), agreed=STATS), False, Claim(4, 1, 8, reduced=1)),
        (
            Cut(4, 1, 8, state_of(), pending=pending(8, STATS)), False,
            Claim(4, 1, 8, reduced=1, agreed=8, norm=2.5, loss_sum=7.0),
        ),
    ],
    ids=["nothing", "own", "copy", "updated", "reduced", "agreed"],
)  # fmt: skip
def test_a_rank_claims_what_its_cut_has_and_the_last_step_that_it_knows_agreed(
    cut: Cut | None, weights: bool, claim: Claim
) -> None:
    found = Claim.of(cut, weights)
    assert found == claim and Claim(*found.row()) == found


def test_ranks_that_have_the_step_have_nothing_to_finish() -> None:
    assert check_claims(SOURCE, claims_of(DONE, DONE, DONE)) is None


@pytest.mark.parametrize(
    "knows", [DONE, replace(BEHIND, agreed=STEP - 1, norm=2.5, loss_sum=7.0)], ids=["updated", "agreed"]
)
def test_ranks_behind_finish_the_step_with_what_another_knows_of_it(knows: Claim) -> None:
    assert check_claims(SOURCE, claims_of(BEHIND, knows, BEHIND)) == STATS


@pytest.mark.parametrize(
    "other",
    [
        BEHIND,
        replace(DONE, agreed=STEP - 2),
        replace(DONE, agreed=STEP),
        replace(BEHIND, generation=GENERATION - 1, agreed=STEP - 1, norm=2.5, rank=0),
    ],
    ids=["unknown", "of the step before", "of the step after", "of another generation"],
)
def test_a_step_whose_statistics_no_rank_knows_is_not_finished(other: Claim) -> None:
    holders = (Holder(0, 0), Holder(1, 1), Holder(2, 2))[: 3 if other.generation == GENERATION else 2]
    source = replace_source(holders=(*holders, *((Holder(2, 1, copy=True),) if len(holders) < 3 else ())))
    claims = claims_of(BEHIND, replace(BEHIND, ward=2), other)
    with pytest.raises(Retryable, match=r"are to finish step 7; its statistics are known as \[\], which must be one"):
        check_claims(source, claims)


def replace_source(**changes: Any) -> LiveSource:
    return LiveSource(**{"generation": GENERATION, "layout": LAYOUT, "step": STEP, "holders": OWNERS} | changes)


@pytest.mark.parametrize("differs", [{"norm": 2.0}, {"loss_sum": 6.0}])
def test_a_step_of_which_ranks_know_different_statistics_is_not_finished(differs: dict[str, float]) -> None:
    with pytest.raises(Retryable, match=r"^ranks \[0\] are to finish step 7; its statistics are known as"):
        check_claims(SOURCE, claims_of(BEHIND, DONE, replace(DONE, **differs)))


@pytest.mark.parametrize(
    ("claim", "has"),
    [
        (replace(DONE, step=STEP - 1), "it has step 7"),  # not reduced
        (replace(BEHIND, step=STEP - 2), "it has step 6"),
        (replace(BEHIND, step=STEP + 1), "it has step 9"),
        (replace(DONE, generation=3.0), "it holds rank 2 of generation 3"),
        (replace(DONE, rank=1.0), "it holds rank 1 of generation 4"),
        (replace(DONE, rank=1.0, ward=2.0), "it holds rank 1 of generation 4"),  # a copy is not the shard
    ],
)
def test_a_rank_that_does_not_hold_what_the_source_says_is_named(claim: Claim, has: str) -> None:
    with pytest.raises(NotHeld, match=rf"^rank 2 is to hold the shard of rank 2 of generation 4.*, {has}$"):
        check_claims(SOURCE, claims_of(DONE, DONE, claim))


def test_a_copy_must_be_of_the_ward_that_the_source_names() -> None:
    source = replace_source(holders=(*OWNERS[:2], Holder(2, 0, copy=True)))
    assert check_claims(source, claims_of(replace(DONE, ward=2), DONE)) is None
    with pytest.raises(Retryable, match=r"^rank 0 is to hold the copy of rank 2 of generation 4, it holds rank 0"):
        check_claims(source, claims_of(replace(DONE, ward=1), DONE))


def contents_of(*shards: tuple[int, int]) -> list[Content]:
    return [Content(5, own, copy) for own, copy in shards]


def test_the_content_of_the_whole_state_counts_every_shard_once_however_many_hold_it() -> None:
    holders = (Holder(0, 0), Holder(1, 0, copy=True), Holder(1, 1), Holder(2, 1, copy=True), Holder(2, 2))
    contents = contents_of((10, 20), (20, MOST), (MOST, 0))
    assert check_contents(replace_source(holders=holders), contents) == 10 + 20 + MOST - (MOST + 1)
    differs = [*contents[:2], replace(contents[2], own=3)]
    with pytest.raises(Retryable, match="ranks 1 and 2 hold different contents of the shard of rank 2"):
        check_contents(replace_source(holders=holders), differs)


def test_ranks_that_made_another_transfer_list_are_named() -> None:
    contents = contents_of((1, 0), (2, 0), (3, 0))
    with pytest.raises(Retryable, match=r"^ranks \[1\] made another transfer list than rank 0$"):
        check_contents(SOURCE, [contents[0], replace(contents[1], moves=6), contents[2]])


@pytest.mark.parametrize(
    ("contents", "copies", "says"),
    [
        ([(1, 2), (2, 1)], True, ""),
        ([(1, 0), (2, 0)], False, ""),
        ([(MOST, 5), (4, MOST - 1)], True, ""),
        ([(1, 0), (2, 0)], True, "the new copies have content 0000000000000000, the old ones 0000000000000003"),
        ([(1, 2), (1, 1)], True, "the new shards have content 0000000000000002, the old ones 0000000000000003"),
    ],
)
def test_a_change_counts_only_if_shards_and_copies_are_what_the_old_state_was(
    contents: list[tuple[int, int]], copies: bool, says: str
) -> None:
    if not says:
        check_moved(3, contents_of(*contents), copies)
        return
    with pytest.raises(Retryable, match=f"^{says}: the change is dropped$"):
        check_moved(3, contents_of(*contents), copies)


def test_a_change_does_not_count_where_messages_did_not_match_whatever_arrived() -> None:
    whole_ = contents_of((1, 0), (2, 0))
    with pytest.raises(Retryable, match=r"^ranks \[1\] received messages that do not match their manifests"):
        check_moved(3, [whole_[0], replace(whole_[1], fault=1)], False)


# --- moves ------------------------------------------------------------------------------------------------------------


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
    assert torch.equal(torch.cat([tensor for ((_, tensor),) in post.sent]), mine)
    assert {peer for ((peer, _),) in post.sent} == {2}
    assert max(len(tensor) for ((_, tensor),) in post.sent) <= each and len(post.sent) == len(arrives)


def test_without_wards_nothing_is_sent_and_no_copy_is_there() -> None:
    copies = Copies(Post(), 0, ())
    assert copies.ward is None and copies.exchange(torch.ones(3)) is None
    assert copies.everyone.sent == []  # type: ignore[attr-defined]


# --- what a worker holds ----------------------------------------------------------------------------------------------


def cut(generation: int = 4, **changes: Any) -> Cut:
    return Cut(generation, 1, 8, state_of(), **changes)


@pytest.mark.parametrize(
    ("found", "held"),
    [
        (cut(), Held(3, 4, 1, 8)),
        (cut(ward=2), Held(3, 4, 1, 8, "", (2,))),
        (cut(ward=0), Held(3, 4, 1, 8, "", (0,))),
        (cut(pending=pending(8)), Held(3, 4, 1, 8, "Reduced")),
        (cut(pending=pending(8, STATS)), Held(3, 4, 1, 8, "Agreed")),
        (cut(whole=False), None),
    ],
)
def test_a_worker_says_of_its_cut_how_far_it_is_and_nothing_of_one_whose_update_broke_off(
    found: Cut, held: Held | None
) -> None:
    assert found.held(3) == held
    live = LiveState()
    assert (live.held(3), live.all_held(3)) == (None, ())
    live.begin(found)
    assert live.held(3) == held and live.all_held(3) == ((held,) if held else ())


def test_a_worker_between_two_layouts_holds_both_until_one_is_kept() -> None:
    old, new = cut(4), cut(5)
    live = LiveState(old, new, weights={})
    assert [held.generation for held in live.all_held(0)] == [4, 5]
    assert (live.choose(4), live.choose(5), live.choose(6)) == (old, new, None)
    live.keep(old)
    assert (live.current, live.prepared, live.weights) == (old, None, {})
    live.prepared = new
    live.keep(new)
    assert (live.current, live.prepared, live.weights) == (new, None, None)
    live.keep(None)
    assert live.current is None and live.choose(5) is None


def test_a_cut_whose_update_broke_off_is_never_chosen() -> None:
    assert LiveState(cut(4, whole=False)).choose(4) is None
    assert LiveState(None, cut(5, whole=False)).choose(5) is None


def test_a_worker_that_forgets_keeps_room_and_nothing_else() -> None:
    live = LiveState(cut(), cut(5), weights={}, unreported=Finished(7, 1.5, 2.5, 0.1))
    room = live.own
    live.forget()
    assert live.own is room
    assert (live.current, live.prepared, live.weights, live.unreported, live.all_held(0)) == (
        None,
        None,
        None,
        None,
        (),
    )


def test_an_update_of_shard_and_copy_is_the_same_and_what_is_unreported_is_known() -> None:
    live, config = LiveState(weights={}), OptimizerConfig(learning_rate=0.1)
    live.begin(Cut(4, 1, 8, state_of(1.0), 2, state_of(1.0)))
    live.weights = {}
    live.reduced(PendingStep(8, torch.full((6,), 2.0), torch.full((6,), 2.0), 1.5))
    live.agreed(STATS)
    live.update(config, 0.1, ())
    found, done = live.current, live.unreported
    assert found is not None and found.copy is not None and done is not None
    for kind in KINDS:
        assert torch.equal(found.own[kind], found.copy[kind]) and not torch.equal(found.own[kind], state_of(1.0)[kind])
    assert (found.step, found.pending, found.agreed, found.whole, live.weights) == (9, None, STATS, True, None)
    assert (done.step, done.loss_sum, done.gradient_norm, done.learning_rate) == (8, 1.5, 2.5, 0.1)


def test_a_gradient_that_is_not_finite_changes_nothing_of_what_is_held() -> None:
    live = LiveState()
    live.begin(Cut(4, 1, 8, state_of(1.0)))
    live.reduced(pending(8))
    live.agreed(GlobalStats(7.0, float("nan")))
    with pytest.raises(Refused, match="gradient norm nan"):
        live.update(OptimizerConfig(learning_rate=0.1), 0.1, ())
    assert live.held(0) == Held(0, 4, 1, 8, "Agreed") and torch.equal(live.own["parameter"], torch.ones(6))
