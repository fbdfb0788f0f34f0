from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coxswain.membership.order import WINDOW, PassOrder, SourceView
from tests.unit.membership_fakes import random_view, view


def draws(v: SourceView, turn: int = 0) -> list[tuple[int, int]]:
    order = PassOrder(7, v, turn)
    return [order.at(n) for n in range(v.samples)]


@given(st.integers(0, 10_000), st.integers(1, 40))
def test_a_pass_draws_every_sample_once_with_its_own_length(seed, blocks):
    v = random_view("code", seed, blocks)
    lengths = np.concatenate([v.lengths(b) for b in range(blocks)])
    drawn = draws(v)
    assert sorted(index for index, _ in drawn) == list(range(v.samples))
    assert all(lengths[index] == length for index, length in drawn)


@given(st.integers(0, 10_000), st.data())
def test_a_draw_does_not_depend_on_the_draws_before_it(seed, data):
    v = random_view("code", seed)
    n = data.draw(st.integers(0, v.samples - 1))
    assert PassOrder(7, v, 0).at(n) == draws(v)[n]


def test_passes_have_different_orders():
    v = random_view("code", 1)
    assert draws(v, 0) != draws(v, 1)


def test_few_blocks_are_in_use_at_a_time():
    v = view("code", [[5] * 100 for _ in range(64)])
    blocks = [index // 100 for index, _ in draws(v)]
    windows = [set(blocks[at : at + WINDOW * 100]) for at in range(0, len(blocks), WINDOW * 100)]
    assert all(len(window) == WINDOW for window in windows)


def test_neighbours_in_the_stream_mostly_come_from_different_blocks():
    v = view("code", [[5] * 100 for _ in range(64)])
    blocks = [index // 100 for index, _ in draws(v)]
    assert np.mean(np.diff(blocks) == 0) < 0.2


def test_a_draw_reads_only_the_blocks_of_its_window():
    read: list[int] = []

    def lengths(block: int) -> np.ndarray:
        read.append(block)
        return np.full(10, 5, dtype=np.uint32)

    PassOrder(7, SourceView("code", np.full(1000, 10), lengths), 0).at(4321)
    assert len(set(read)) <= WINDOW


def test_the_blocks_of_a_window_are_named_to_be_fetched_before_its_first_draw_and_once():
    """One at a time, they would be read amid the draws."""
    order = PassOrder(7, view("code", [[5] * 3] * 4), 0)
    assert sorted(order.to_fetch(0)) == [0, 1, 2, 3]
    assert order.to_fetch(11) == []


def test_blocks_that_a_draw_before_those_that_were_named_needs_are_named_again_and_empty_blocks_never():
    """A coordinator that goes back to an earlier cursor, after the loss of a world, draws there again."""
    order = PassOrder(7, view("code", [[5] * (n % 3) * 700 for n in range(4 * WINDOW)]), 0)
    later = order.to_fetch(15_000)
    again = order.to_fetch(0)
    assert later and again and not set(later) & set(again)
    assert all(block % 3 for block in [*later, *again])
