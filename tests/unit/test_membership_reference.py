"""Membership equals a slow second implementation: permutation, order of a pass, and the mixed stream."""

from __future__ import annotations

from itertools import islice

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from coxswain.config import PhaseConfig
from coxswain.membership.order import PassOrder
from coxswain.membership.permutation import Permutation, key_of
from coxswain.membership.stream import Stream, initial_cursor
from tests.unit import membership_reference as reference
from tests.unit.membership_fakes import stream, view

calm = settings(deadline=None)
LONGEST = 10
BLOCKS = st.lists(st.lists(st.integers(1, 25), max_size=5), max_size=18)
"""Blocks of up to five samples; one of `LONGEST` tokens exactly is added, so that Drop leaves something."""


@calm
@given(st.integers(1, 10**12), st.integers(0, 100), st.data())
def test_the_image_of_a_position_is_that_of_the_slow_permutation(size, seed, data):
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=4))
    found = Permutation(size, key_of(seed, "code"))(np.array(positions)).tolist()
    assert found == [reference.image(size, reference.key(seed, "code"), p) for p in positions]


@calm
@given(BLOCKS, st.integers(0, 5), st.integers(0, 3))
def test_a_pass_draws_in_the_order_of_the_slow_one(blocks, seed, epoch):
    blocks = [*blocks, [LONGEST]]
    v = view("code", blocks)
    order = PassOrder(seed, v, epoch)
    assert [order.at(n) for n in range(v.samples)] == reference.pass_order(seed, "code", epoch, blocks)


def test_a_window_of_more_samples_than_are_computed_together_is_drawn_in_the_slow_order():
    blocks = [[5 + i % 7 for i in range(b)] for b in (900, 0, 700, 1, 800)]
    order = PassOrder(3, view("code", blocks), 0)
    expected = reference.pass_order(3, "code", 0, blocks)
    assert [order.at(n) for n in range(len(expected))] == expected
    assert [order.at(n) for n in reversed(range(1000, 1100))] == expected[1000:1100][::-1]


@st.composite
def mixes(draw):
    """A stream over one to three sources, any policy, any phases; and the lengths that it is made of."""
    lengths = {n: [*draw(BLOCKS), [LONGEST]] for n in draw(st.sampled_from(["a", "ab", "cab"]))}
    weight = st.integers(0, 5)
    phases = tuple(
        PhaseConfig(
            **{draw(st.sampled_from(["from_step", "from_tokens"])): begin}, weights=dict.fromkeys(lengths, 1) | w
        )
        for begin in sorted(draw(st.lists(st.integers(0, 60), max_size=2)))
        if (w := draw(st.dictionaries(st.sampled_from(sorted(lengths)), weight)))
    )
    policy = draw(st.sampled_from(["Split", "Truncate", "Drop"]))
    weights = [draw(st.integers(1, 5)), *(draw(weight) for _ in list(lengths)[1:])]
    tokens, passes = draw(st.integers(1, 60)), draw(st.integers(0, 2))
    views = [view(n, blocks) for n, blocks in lengths.items()]
    return stream(views, weights, tokens, LONGEST, passes, policy, phases), lengths


@calm
@given(mixes())
def test_every_step_of_the_stream_is_that_of_the_slow_one(case: tuple[Stream, dict]):
    s, lengths = case
    cursor = initial_cursor(s.mix)
    for expected in islice(reference.stream(s.mix, s.batch, lengths), 12):
        membership, cursor = s.advance(cursor)
        state = {c.name: (c.tokens, c.total_tokens, c.exhausted) for c in cursor.sources}
        found = [astuple(q) for q in membership.sequences], membership.exhausted, cursor.offset, cursor.phase, state
        assert found == tuple(expected)
        if membership.exhausted:
            break
