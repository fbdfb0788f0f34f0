"""Head-tail chunks of rings."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coxswain.plan.chunks import ring_slices
from tests.unit import plan_reference as reference

RINGS = {"length": st.integers(1, 3000), "degree": st.integers(2, 128)}
calm = settings(deadline=None)


def test_a_ring_of_two_has_head_and_tail_of_each_member_in_ring_order() -> None:
    found = [(s.replica, s.sequence, s.start, s.stop) for s in ring_slices(5, 10, (4, 1))]
    assert found == [(4, 5, 0, 3), (4, 5, 8, 10), (1, 5, 3, 6), (1, 5, 6, 8)]


def test_slices_of_a_short_ring_leave_out_empty_chunks() -> None:
    slices = ring_slices(5, 3, (7, 2, 4, 9))
    assert [(s.replica, s.start, s.stop) for s in slices] == [(7, 0, 1), (2, 1, 2), (4, 2, 3)]


@calm
@given(**RINGS)
def test_slices_are_those_of_tokens_dealt_one_by_one(length: int, degree: int) -> None:
    members = tuple(reversed(range(degree)))
    found = [(s.replica, s.start, s.stop) for s in ring_slices(0, length, members)]
    assert found == reference.ring_slices(length, members)


@calm
@given(**RINGS)
def test_members_share_tokens_and_causal_work_evenly(length: int, degree: int) -> None:
    tokens, work = [0] * degree, [0] * degree
    for s in ring_slices(0, length, tuple(range(degree))):
        tokens[s.replica] += s.stop - s.start
        work[s.replica] += sum(range(s.start, s.stop))
    assert max(tokens) - min(tokens) <= 1
    assert max(work) - min(work) <= 2 * length
