from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coxswain.membership.permutation import VERSION, Permutation, key_of


def images(size: int, *key: str | int) -> list[int]:
    return Permutation(size, key_of(*key))(np.arange(size)).tolist()


@given(st.integers(1, 3000), st.integers(0, 2**63))
def test_every_position_has_one_image_and_every_image_one_position(size, key):
    assert sorted(images(size, key)) == list(range(size))


@given(st.integers(1, 10**12), st.integers(0, 100))
def test_a_position_alone_has_the_image_that_it_has_among_others(size, key):
    permutation = Permutation(size, key_of(key))
    positions = np.unique(np.array([0, size // 3, size // 2, size - 1]))
    alone = [int(permutation(np.array([p]))[0]) for p in positions]
    assert permutation(positions).tolist() == alone
    assert all(0 <= image < size for image in alone)


def test_another_key_gives_another_order():
    assert len({tuple(images(50, 7, name, turn)) for name in "ab" for turn in range(3)}) == 6


def test_parts_of_a_key_do_not_run_together():
    assert key_of("a", "bc") != key_of("ab", "c")


def test_the_order_is_that_of_version_1():
    assert VERSION == 1
    assert images(10, 7, "code", 0) == GOLDEN_10
    large = Permutation(10**9, key_of(7, "code", 0))(np.arange(4))
    assert large.tolist() == GOLDEN_LARGE


def test_neighbours_are_mapped_apart():
    order = np.array(images(1000, "x"))
    assert np.mean(np.abs(np.diff(order)) == 1) < 0.02


GOLDEN_10 = [5, 1, 4, 2, 3, 8, 0, 6, 9, 7]
GOLDEN_LARGE = [502945512, 933770794, 490932749, 459506195]
