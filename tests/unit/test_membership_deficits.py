"""The source that is furthest behind its weight: the same, to the integer, however many there are and however large."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coxswain.membership.deficits import MANY, Deficits

LARGE = st.integers(1, 2**56)


def furthest(weights: list[int], tokens: list[int]) -> int:
    surplus = [t * sum(weights) - w * sum(tokens) for w, t in zip(weights, tokens, strict=True)]
    return surplus.index(min(surplus))


def test_a_tie_goes_to_the_first_source_by_name():
    assert Deficits([1, 1, 1], [0, 0, 0]).largest() == 0
    assert Deficits([2, 1], [10, 5]).largest() == 0
    assert Deficits([2, 1], [11, 5]).largest() == 1


@pytest.mark.parametrize("count", [MANY - 1, MANY, MANY + 1, 300])
def test_a_tie_of_many_goes_to_the_first_as_well(count):
    assert Deficits([3] * count, [0] * count).largest() == 0
    assert Deficits([3] * count, [7] * 5 + [2] * (count - 5)).largest() == 5


@pytest.mark.parametrize("place", [0, 1, 150, 299])
def test_one_token_decides_where_floats_see_no_difference(place):
    """10^17 tokens: a float next to them is 16 away."""
    tokens = [10**17 + 1] * 300
    tokens[place] -= 1
    assert Deficits([2**40 + 1] * 300, tokens).largest() == place
    assert float(tokens[place]) == float(tokens[place - 1])


def test_a_source_whose_float_is_not_the_least_is_found_where_its_deficit_is_the_largest():
    rng, misled = np.random.default_rng(3), 0
    for _ in range(100):
        weights = rng.integers(2**40, 2**41, MANY).tolist()
        tokens = [w * 2**14 + more for w, more in zip(weights, rng.integers(0, 2**6, MANY).tolist(), strict=True)]
        place = furthest(weights, tokens)
        assert Deficits(weights, tokens).largest() == place
        floats = np.array(tokens) * float(sum(weights)) - np.array(weights) * float(sum(tokens))
        misled += bool(floats[place] > floats.min())
    assert misled > 5


@given(st.lists(st.tuples(LARGE, LARGE | st.just(0)), min_size=1, max_size=2 * MANY), st.data())
def test_it_is_the_largest_of_all_also_while_sources_draw_and_leave(rows, data):
    weights, tokens = map(list, zip(*rows, strict=True))
    found = Deficits(weights, tokens)
    for _ in range(6):
        assert found.largest() == furthest(weights, tokens)
        place = data.draw(st.integers(0, len(weights) - 1))
        if len(weights) > 1 and data.draw(st.booleans()):
            found.leave(place)
            del weights[place], tokens[place]
        else:
            tokens[place] += data.draw(st.integers(0, 2**40))
            found.set_tokens(place, tokens[place])


def test_a_long_draw_of_many_sources_is_that_of_exact_figures_throughout():
    rng = np.random.default_rng(5)
    weights = rng.integers(1, 10**6, 3 * MANY).tolist()
    tokens = [0] * len(weights)
    found = Deficits(weights, tokens)
    for length in rng.integers(1, 9000, 3000).tolist():
        place = found.largest()
        assert place == furthest(weights, tokens)
        tokens[place] += length
        found.set_tokens(place, tokens[place])
