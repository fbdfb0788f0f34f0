"""Phases: which weights are in force, and that none of them ends the stream before a later one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coxswain.config import PhaseConfig
from coxswain.errors import Refused
from coxswain.membership.mix_record import record_of
from coxswain.membership.stream import Stream
from tests.unit.membership_fakes import random_view, steps, stream, view

SEEDS = st.integers(0, 10_000)
NAMES = ("code", "docs", "wiki")
calm = settings(deadline=None, max_examples=40)


def two_sources(seed: int, **options) -> Stream:
    return stream([random_view("code", seed), random_view("docs", seed)], [700, 300], **options)


@calm
@given(SEEDS)
def test_shares_from_a_phases_first_step_on_follow_its_weights_and_ignore_the_past(seed):
    later = PhaseConfig(from_step=10, weights={"code": 1, "docs": 1})
    found = steps(two_sources(seed, phases=(later,)), 20)
    assert found[:10] == steps(two_sources(seed), 10)
    total = Counter()
    for q in (q for m in found[10:] for q in m.sequences):
        total[q.source] += q.tokens
        assert abs(total["code"] - 0.5 * total.total()) <= 60


def test_a_phase_by_tokens_begins_with_the_first_step_behind_them():
    later = PhaseConfig(from_tokens=250, weights={"code": 1})
    s = stream([view("code", [[10] * 50]), view("docs", [[10] * 50])], [0, 1], tokens=100, phases=(later,))
    assert [m.sequences[0].source for m in steps(s, 5)] == ["docs", "docs", "docs", "code", "code"]


@pytest.mark.parametrize(("tokens", "first"), [(199, 2), (200, 2), (201, 3)])
def test_a_step_before_which_exactly_the_tokens_of_a_phase_were_drawn_is_its_first(tokens, first):
    later = PhaseConfig(from_tokens=tokens, weights={"code": 1})
    s = stream([view("code", [[10] * 50]), view("docs", [[10] * 50])], [0, 1], tokens=100, phases=(later,))
    assert [m.sequences[0].source for m in steps(s, 4)] == ["docs"] * first + ["code"] * (4 - first)


@pytest.mark.parametrize("begin", ["from_step", "from_tokens"])
def test_a_step_that_several_phases_have_begun_before_is_in_the_last_of_them(begin):
    """As after an edit, from which on phases are entered again."""
    units = {"from_step": (1, 2), "from_tokens": (100, 200)}[begin]
    later = tuple(
        PhaseConfig(**{begin: at}, weights={name: 1}) for at, name in zip(units, ("code", "wiki"), strict=True)
    )
    s = stream([view(name, [[10] * 50]) for name in NAMES], [0, 1, 0], tokens=100, phases=later)
    edit = s.under(replace(record_of(s.mix, 1), weights={"code": 0, "docs": 5, "wiki": 0}))
    found = steps(edit, 2, steps(s, 6)[5].cursor)
    assert [{q.source for q in m.sequences} for m in found] == [{"wiki"}, {"wiki"}]


def test_phases_recorded_later_continue_the_same_stream():
    later = (PhaseConfig(from_step=3, weights={"docs": 1}),)
    other = two_sources(1, phases=later)
    assert steps(two_sources(1).under(record_of(other.mix, 0)), 6) == steps(other, 6)


def test_phases_that_have_begun_cannot_be_removed():
    later = PhaseConfig(from_step=1, weights={"docs": 1})
    cursor = steps(two_sources(1, phases=(later,)), 5)[4].cursor
    with pytest.raises(Refused, match="phases that have begun must stay"):
        two_sources(1).advance(cursor)


def curriculum(first: list[int], begin: PhaseConfig, **options) -> Stream:
    """One pass over `pretrain`, then one over the 300 tokens of `anneal`, which has no weight before."""
    views = [view("pretrain", [first]), view("anneal", [[10] * 30])]
    return stream(views, [1, 0], tokens=100, passes=1, phases=(begin,), **options)


@pytest.mark.parametrize("begin", [{"from_tokens": 1000}, {"from_step": 10}, {"from_step": 10**9}])
@pytest.mark.parametrize("tokens", [1000, 990])
def test_a_phase_begins_at_the_latest_with_the_draw_before_which_the_sources_of_the_one_in_force_have_left(
    begin, tokens
):
    found = steps(curriculum([10] * (tokens // 10), PhaseConfig(**begin, weights={"anneal": 1})), 100)
    assert [m.tokens for m in found] == [100] * ((tokens + 300) // 100) + [90] * (tokens % 100 > 0)
    assert [m.exhausted for m in found] == [False] * (len(found) - 1) + [True]
    assert {q.source for q in found[10].sequences} == {"anneal"}
    assert Counter(q.source for m in found for q in m.sequences) == {"pretrain": tokens // 10, "anneal": 30}


def test_a_phase_of_which_all_sources_have_left_is_passed_over():
    later = tuple(PhaseConfig(from_step=n, weights={name: 1}) for n, name in ((5, "code"), (50, "docs")))
    s = stream([view("code", [[10] * 5]), view("docs", [[10] * 5])], [1, 0], tokens=10, passes=1, phases=later)
    assert [[q.source for q in m.sequences] for m in steps(s, 100)] == [["code"]] * 5 + [["docs"]] * 5


def test_a_phase_without_any_weight_is_passed_over():
    later = (PhaseConfig(from_step=2, weights={"code": 0}), PhaseConfig(from_step=50, weights={"code": 1}))
    s = stream([view("code", [[10] * 5])], [1], tokens=10, passes=1, phases=later)
    assert [m.tokens for m in steps(s, 100)] == [10] * 5


def test_a_source_of_which_only_dropped_samples_are_left_gives_way_within_the_step():
    begin = PhaseConfig(from_step=50, weights={"anneal": 1})
    s = curriculum([25] * 9 + [8], begin, longest=10, policy="Drop")
    assert [m.tokens for m in steps(s, 100)] == [108, 100, 100]


@st.composite
def phased(draw) -> Stream:
    """One or two passes over three sources, under at most four phases with any weights."""
    weights = st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(0, 3)))
    begins = sorted(draw(st.sets(st.integers(0, 60), max_size=4)))
    by_step = draw(st.booleans())
    phases = tuple(
        PhaseConfig(from_step=n if by_step else -1, from_tokens=-1 if by_step else 100 * n, weights=draw(weights))
        for n in begins
    )
    views, own = [random_view(name, draw(SEEDS)) for name in NAMES], draw(weights)
    policy = draw(st.sampled_from(["Split", "Truncate", "Drop"]))
    return stream(views, list(own.values()), passes=draw(st.integers(1, 2)), policy=policy, phases=phases, longest=30)


@calm
@given(phased())
def test_at_the_end_no_source_is_left_that_the_phase_in_force_or_a_later_one_weights(s):
    found = steps(s, 10_000)
    after = s.advance(found[-1].cursor)[1]
    weights = [{c.name: c.weight for c in s.mix.sources}, *(p.weights for p in s.mix.phases)]
    wanted = {name for phase in weights[after.phase :] for name, weight in phase.items() if weight}
    assert found[-1].exhausted
    assert wanted <= {c.name for c in after.sources if c.exhausted}


@calm
@given(phased())
def test_each_step_but_the_last_is_full_whatever_phases_end_within_it(s):
    found = steps(s, 10_000)
    assert all(after.cursor.offset >= after.step * 200 for after in found[1:])
