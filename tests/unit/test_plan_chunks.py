"""Head-tail chunks of rings."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coxswain.plan.chunks import chunk_table, member_chunks, ring_chunks, ring_slices
from coxswain.plan.values import Task

SHAPES = {"length": st.integers(1, 100_000), "degree": st.integers(2, 128)}


def test_a_ring_of_three_covers_every_token_once() -> None:
    chunks = ring_chunks(17, 3)
    assert [t for start, stop in chunks for t in range(start, stop)] == list(range(17))
    assert len(chunks) == 6


@given(**SHAPES)
def test_chunks_follow_each_other_and_differ_by_at_most_one_token(length: int, degree: int) -> None:
    chunks = ring_chunks(length, degree)
    assert chunks[0][0] == 0
    assert chunks[-1][1] == length
    assert all(a[1] == b[0] for a, b in pairwise(chunks))
    sizes = [stop - start for start, stop in chunks]
    assert max(sizes) - min(sizes) <= 1


@given(**SHAPES)
def test_no_member_holds_more_than_its_even_share_rounded_up(length: int, degree: int) -> None:
    for member in range(degree):
        (a, b), (c, d) = member_chunks(length, degree, member)
        assert length // degree <= (b - a) + (d - c) <= -(-length // degree)


@given(**SHAPES)
def test_causal_work_of_members_differs_by_less_than_two_rows_of_the_longest_chunk(length: int, degree: int) -> None:
    work = [sum(sum(range(a, b)) for a, b in member_chunks(length, degree, m)) for m in range(min(degree, 8))]
    assert max(work) - min(work) <= 2 * length


def test_slices_of_a_short_ring_leave_out_empty_chunks() -> None:
    slices = ring_slices(5, 3, (7, 2, 4, 9))
    assert [(s.replica, s.start, s.stop) for s in slices] == [(7, 0, 1), (2, 1, 2), (4, 2, 3)]


def test_the_chunk_table_has_head_and_tail_of_every_member_in_ring_order() -> None:
    task = Task(0, "ring", (4, 1), tuple(ring_slices(0, 10, (4, 1))))
    assert chunk_table(task, 10) == (((0, 3), (8, 10)), ((3, 6), (6, 8)))
