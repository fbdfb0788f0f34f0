"""Head-tail chunks of rings."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coxswain.plan.chunks import ring_slices
from tests.unit import plan_reference as reference

RINGS = {"length": st.integers(1, 3000), "degree": st.integers(2, 128)}
calm = settings(deadline=None)


def test_a_ring_of_two_has_head_and_tail_of_each_member_in_ring_order() -> None:
    found = [(s.replica, s.sequence, s.start, s.stop) for s in ring_slices([1], [0, 10], (4, 1))]
    assert found == [(4, 1, 0, 3), (4, 1, 8, 10), (1, 1, 3, 6), (1, 1, 6, 8)]


def test_slices_of_a_short_ring_leave_out_empty_chunks() -> None:
    slices = ring_slices([0], [3], (7, 2, 4, 9))
    assert [(s.replica, s.start, s.stop) for s in slices] == [(7, 0, 1), (2, 1, 2), (4, 2, 3)]


@calm
@given(**RINGS)
def test_slices_are_those_of_tokens_dealt_one_by_one(length: int, degree: int) -> None:
    members = tuple(reversed(range(degree)))
    found = [(s.replica, s.start, s.stop) for s in ring_slices([0], [length], members)]
    assert found == reference.ring_slices(length, members)


@calm
@given(**RINGS)
def test_members_share_tokens_and_causal_work_evenly(length: int, degree: int) -> None:
    tokens, work = [0] * degree, [0] * degree
    for s in ring_slices([0], [length], tuple(range(degree))):
        tokens[s.replica] += s.stop - s.start
        work[s.replica] += sum(range(s.start, s.stop))
    assert max(tokens) - min(tokens) <= 1
    assert max(work) - min(work) <= 2 * length


def test_tokens_that_do_not_divide_go_to_members_in_turn() -> None:
    found = [(s.replica, s.sequence, s.start, s.stop) for s in ring_slices([1, 0], [1, 4], (7, 2, 5))]
    assert found == [(7, 1, 0, 1), (7, 1, 3, 4), (2, 1, 1, 2), (5, 1, 2, 3), (2, 0, 0, 1)]


@calm
@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=20), degree=st.integers(2, 16))
def test_members_of_a_ring_of_several_sequences_hold_the_same_number_of_tokens(lengths: list[int], degree: int) -> None:
    slices = ring_slices(range(len(lengths)), lengths, tuple(range(degree)))
    tokens = [sum(s.stop - s.start for s in slices if s.replica == r) for r in range(degree)]
    assert max(tokens) - min(tokens) <= 1
    for sequence, length in enumerate(lengths):
        mine = sorted((s.start, s.stop) for s in slices if s.sequence == sequence)
        assert [0, *(stop for _, stop in mine)] == [*(start for start, _ in mine), length]
        shares = [
            sum(s.stop - s.start for s in slices if (s.replica, s.sequence) == (r, sequence)) for r in range(degree)
        ]
        assert max(shares) - min(shares) <= 1
