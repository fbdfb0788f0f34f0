"""Where a world's state comes from: never from ranks that lack a shard, and from the newest step that they can reach."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coxswain.layout import Device, uniform_layout
from coxswain.live import Held, Holder, LiveSource, live_source

GENERATION = 4
LAYOUT = uniform_layout([Device(t, 0) for t in range(3)], layers=1)
SHARDS = set(range(3))


def held(rank, step, pending="", copies=(), generation=GENERATION):
    return Held(0, generation, rank, step, pending, copies)


def source_of(*held):
    return live_source(enumerate(held), GENERATION, LAYOUT)


RANKS = st.integers(0, 3)  # one of them is not in the layout
HELD = st.builds(
    Held, st.just(0), st.sampled_from([GENERATION - 1, GENERATION, GENERATION]), RANKS, st.integers(6, 8),
    st.sampled_from(["", "Reduced", "Agreed"]), st.lists(RANKS, max_size=2).map(tuple),
)  # fmt: skip
STANDINGS = st.lists(HELD, max_size=6).map(lambda found: list(enumerate(found)))


def reaches(one, step, everyone):
    """Whether this worker has the state before `step`, or finishes the step before with a norm that one of them knows."""
    if one.step == step:
        return True
    known = any(h.step == step or (h.step == step - 1 and h.pending == "Agreed") for h in everyone)
    return one.step == step - 1 and bool(one.pending) and known


def steps_that_can_go_on(standings):
    mine = [h for _, h in standings if h.generation == GENERATION]
    for step in range(12):
        able = [h for h in mine if reaches(h, step, mine)]
        if {shard for h in able for shard in (h.rank, *h.copies)} >= SHARDS:
            yield step


@given(STANDINGS)
def test_a_source_is_found_where_every_shard_has_a_holder_and_at_the_newest_such_step(standings):
    source = live_source(standings, GENERATION, LAYOUT)
    assert (source.step if source else None) == max(steps_that_can_go_on(standings), default=None)


@given(STANDINGS)
def test_a_source_names_a_holder_of_every_shard_and_only_workers_that_hold_it_at_its_step(standings):
    source = live_source(standings, GENERATION, LAYOUT)
    if source is None:
        return
    assert (source.generation, source.layout) == (GENERATION, LAYOUT)
    assert {holder.former for holder in source.holders} == SHARDS
    by_rank, everyone = dict(standings), [h for _, h in standings if h.generation == GENERATION]
    for holder in source.holders:
        one = by_rank[holder.rank]
        assert one.generation == GENERATION
        assert holder.former in one.copies if holder.copy else holder.former == one.rank
        assert reaches(one, source.step, everyone)


@given(STANDINGS, st.randoms(use_true_random=False))
def test_a_source_does_not_depend_on_the_order_in_which_agents_registered(standings, random):
    shuffled = random.sample(standings, len(standings))
    assert live_source(shuffled, GENERATION, LAYOUT) == live_source(standings, GENERATION, LAYOUT)


def test_a_step_that_one_rank_has_agreed_on_is_finished_by_all():
    source = source_of(held(0, 7, "Reduced"), held(1, 7, "Agreed"), held(2, 8))
    assert source == LiveSource(GENERATION, LAYOUT, 8, (Holder(0, 0), Holder(1, 1), Holder(2, 2)))


def test_a_step_that_no_rank_has_agreed_on_runs_again():
    assert source_of(held(0, 7, "Reduced"), held(1, 7), held(2, 7, "Reduced")).step == 7


def test_the_shard_of_a_lost_rank_comes_from_the_rank_that_holds_its_copy():
    source = source_of(held(0, 7, copies=(2,)), held(1, 7, copies=(0,)))
    assert source.holders == (Holder(0, 0), Holder(2, 0, copy=True), Holder(1, 1), Holder(0, 1, copy=True))


@pytest.mark.parametrize(
    "lost",
    [
        (held(0, 7), held(1, 7)),
        (held(0, 7), held(1, 7), held(2, 9)),
        (held(0, 7), held(1, 7), held(2, 6)),
        (held(0, 7), held(1, 7), held(2, 5, "Agreed")),
        (held(0, 7), held(1, 7), held(2, 7, generation=GENERATION - 1)),
        (),
    ],
)
def test_without_a_holder_of_every_shard_at_one_step_there_is_no_source(lost):
    assert source_of(*lost) is None


def test_a_rank_that_claims_a_step_far_ahead_is_left_out():
    standings = [held(0, 7), held(1, 7), held(2, 7), held(1, 10**9, "Agreed", (0,))]
    assert source_of(*standings).step == 7
    assert {holder.rank for holder in source_of(*standings).holders} == {0, 1, 2}


def test_a_worker_that_says_two_things_of_one_generation_breaks_nothing():
    twice = [(0, held(0, 7)), (0, held(0, 8)), (1, held(1, 7)), (2, held(2, 7))]
    assert live_source(twice, GENERATION, LAYOUT).holders == (Holder(0, 0), Holder(1, 1), Holder(2, 2))


def test_a_holder_is_sent_and_stored_as_a_row():
    assert msgspec.json.encode(Holder(2, 0, copy=True)) == b"[2,0,true]"


def test_one_rank_of_three_may_be_lost_in_any_moment_of_a_step_where_ranks_hold_copies():
    """Ranks are at most one phase apart: reduced, agreed, done."""
    phases = [(7, ""), (7, "Reduced"), (7, "Agreed"), (8, "")]
    for lost in range(3):
        left = [rank for rank in range(3) if rank != lost]
        for near in itertools.pairwise(phases):
            for moments in itertools.product(near, repeat=2):
                found = source_of(*(held(r, *m, copies=((r + 1) % 3,)) for r, m in zip(left, moments, strict=True)))
                agreed = any(m in phases[2:] for m in moments)
                assert found.step == 7 + agreed
