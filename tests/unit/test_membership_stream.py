from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coxswain.errors import Refused
from coxswain.membership.order import SourceView
from coxswain.membership.stream import enter_mix, initial_cursor, used_up
from coxswain.membership.values import MixRecord
from tests.unit.membership_fakes import random_view, steps, stream, view

SEEDS = st.integers(0, 10_000)
calm = settings(deadline=None, max_examples=40)


def two_sources(seed: int, **options):
    return stream([random_view("code", seed), random_view("docs", seed)], [700, 300], **options)


def sequences(s, count=10_000):
    return [q for m in steps(s, count) for q in m.sequences]


@calm
@given(SEEDS, st.sampled_from([10, 25, 60]))
def test_no_token_is_lost_or_repeated_within_a_pass(seed, longest):
    s = two_sources(seed, longest=longest, passes=2)
    assert_every_token_comes_once_a_pass(s, sequences(s))


@calm
@given(SEEDS, st.integers(1, 60))
def test_an_edit_of_the_mix_loses_and_repeats_no_token_of_a_sample_that_is_split(seed, k):
    s = two_sources(seed, longest=3, passes=2)
    before = steps(s, k)
    cursor = s.advance(before[-1].cursor)[1]
    weights = MixRecord(1, {"code": 300, "docs": 700}, {"code": 2, "docs": 2})
    found = [*before, *steps(s.under(weights), 10_000, cursor)]
    assert_every_token_comes_once_a_pass(s, [q for m in found for q in m.sequences])


def assert_every_token_comes_once_a_pass(s, found):
    """In two passes."""
    pieces = defaultdict(list)
    for q in found:
        pieces[q.source, q.epoch, q.index].append((q.start, q.stop, q.length))
    expected = {(v.name, turn, i) for v in s.views.values() for turn in range(2) for i in range(v.samples)}
    assert set(pieces) == expected
    for parts in pieces.values():
        assert [p[0] for p in parts] == [0] + [p[1] for p in parts[:-1]]
        assert parts[-1][1] == parts[-1][2]


@calm
@given(SEEDS, st.integers(1, 30))
def test_any_cursor_gives_the_same_continuation(seed, k):
    all_steps = steps(two_sources(seed), 40)
    fresh = two_sources(seed)
    assert steps(fresh, 40 - k, all_steps[k].cursor) == all_steps[k:]


@pytest.mark.parametrize(("allowed", "left"), [(0, False), (1, True), (2, True), (3, False)])
def test_an_edit_of_the_mix_judges_passes_and_deficits_of_every_source_again(allowed, left):
    """Two passes are done: a source comes back where the edit allows more, and leaves where it allows fewer."""
    mix, cursor = two_sources(1, passes=allowed).mix, initial_cursor(two_sources(1).mix)
    sources = tuple(msgspec.structs.replace(c, epoch=2, tokens=9, exhausted=not left) for c in cursor.sources)
    cursor = msgspec.structs.replace(cursor, sources=sources, phase=1)
    assert enter_mix(mix, 0, cursor) is cursor
    edited = enter_mix(mix, 1, cursor)
    assert [(c.epoch, c.tokens, c.exhausted) for c in edited.sources] == [(2, 0, left)] * 2
    assert (edited.mix, edited.phase) == (1, 0)


def test_a_stream_holds_the_order_of_one_pass_of_a_source_however_many_were_drawn():
    """An order has 16 bytes a block; sources have millions, and small ones hundreds of passes."""
    s = two_sources(1)
    orders = {name: [weakref.ref(s.order(name, epoch)) for epoch in range(5)] for name in ("code", "docs")}
    assert {name: [o() is not None for o in found] for name, found in orders.items()} == {
        name: [False] * 4 + [True] for name in ("code", "docs")
    }


@calm
@given(SEEDS)
def test_a_sequence_belongs_to_the_step_in_which_its_first_token_falls(seed):
    offset = 0
    for m in steps(two_sources(seed, tokens=200), 30):
        assert m.cursor.offset == offset
        for q in m.sequences:
            assert m.step * 200 <= offset < (m.step + 1) * 200
            offset += q.tokens


@calm
@given(SEEDS)
def test_shares_of_tokens_stay_within_one_sequence_of_the_weights(seed):
    s = two_sources(seed)
    total = Counter()
    for q in sequences(s, 50):
        total[q.source] += q.tokens
        assert abs(total["code"] - 0.7 * total.total()) <= 60


@calm
@given(SEEDS, st.integers(1, 5000))
def test_another_weight_or_another_source_does_not_reorder_a_source(seed, weight):
    alone = [q for q in sequences(stream([random_view("code", seed)], [1]), 30) if q.source == "code"]
    mixed = [q for q in sequences(two_sources(seed), 30) if q.source == "code"]
    other = stream([random_view("art", seed), random_view("code", seed)], [weight, 300])
    beside = [q for q in sequences(other, 30) if q.source == "code"]
    for found in (mixed, beside):
        shared = min(len(alone), len(found))
        assert found[:shared] == alone[:shared]


def test_a_split_piece_has_the_next_token_as_its_last_label():
    s = stream([view("code", [[25]])], [1], tokens=25, longest=10, passes=1)
    [m] = steps(s, 5)
    assert [(q.start, q.stop, q.labels) for q in m.sequences] == [(0, 10, 10), (10, 20, 10), (20, 25, 4)]


def test_a_split_sample_continues_in_the_next_step():
    s = stream([view("code", [[50]])], [1], tokens=20, longest=20, passes=1)
    found = steps(s, 5)
    assert [[(q.start, q.stop) for q in m.sequences] for m in found] == [[(0, 20)], [(20, 40)], [(40, 50)]]
    cursors = [m.cursor for m in found] + [s.advance(found[-1].cursor)[1]]
    assert [(c.sources[0].piece, c.sources[0].piece_index) for c in cursors] == [(0, -1), (20, 0), (40, 0), (0, -1)]


def test_truncate_keeps_the_beginning_of_each_sample():
    s = stream([view("code", [[25, 8]])], [1], longest=10, passes=1, policy="Truncate")
    assert sorted((q.start, q.stop, q.length) for q in sequences(s)) == [(0, 8, 8), (0, 10, 25)]


def test_drop_leaves_long_samples_out():
    s = stream([view("code", [[25, 8, 30, 10, 11]])], [1], longest=10, passes=1, policy="Drop")
    assert sorted(q.length for q in sequences(s)) == [8, 10]


def test_one_short_sample_among_dropped_ones_is_found_in_every_pass():
    s = stream([view("code", [[25] * 9 + [8]])], [1], tokens=8, longest=10, policy="Drop")
    assert [(q.epoch, q.length) for q in sequences(s, 40)] == [(epoch, 8) for epoch in range(40)]


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_a_source_whose_last_samples_are_dropped_leaves_after_its_passes(passes):
    s = stream([view("code", [[25] * 9 + [8]])], [1], tokens=8, longest=10, passes=passes, policy="Drop")
    assert [q.epoch for q in sequences(s, 40)] == list(range(passes))


def test_a_source_of_which_everything_is_dropped_is_refused():
    s = stream([view("code", [[25, 30]])], [1], longest=10, policy="Drop")
    with pytest.raises(Refused, match="'code': none of its 2 samples has at most 10 tokens"):
        steps(s, 1)


def knowing_the_shortest(view: SourceView) -> SourceView:
    return replace(view, shortest=min(int(view.lengths(b).min()) for b in range(len(view.counts)) if view.counts[b]))


def outcome(views: list[SourceView], weights: list[int], passes: int) -> object:
    """The steps, or the refusal."""
    try:
        return steps(stream(views, weights, tokens=20, longest=10, passes=passes, policy="Drop"), 4)
    except Refused as refused:
        return refused.message


@pytest.mark.parametrize("passes", range(5))
@pytest.mark.parametrize("lengths", [[25, 30], [25, 10, 30], [11]])
def test_the_stream_is_the_same_where_the_shortest_document_is_known(passes, lengths):
    views = [view("code", [lengths, lengths]), view("docs", [[5, 20]])]
    assert outcome(list(map(knowing_the_shortest, views)), [1, 1], passes) == outcome(views, [1, 1], passes)


@pytest.mark.parametrize("passes", [0, 1, 2, 3])
def test_a_source_that_is_known_to_be_dropped_whole_is_read_and_walked_over_by_none(passes):
    """A walk over a billion documents would take hours, and read every index."""
    unread = SourceView("code", np.full(10**6, 1000), lambda block: pytest.fail(f"reads block {block}"), shortest=11)
    s = stream([unread, view("docs", [[5]])], [1, 1], longest=10, passes=passes, policy="Drop")
    if passes in (1, 2):
        assert {q.source for q in sequences(s)} == {"docs"}
        return
    with pytest.raises(Refused, match="'code': none of its 1000000000 samples has at most 10 tokens"):
        steps(s, 1)


def test_a_source_that_is_dropped_whole_is_refused_before_its_turn_comes():
    views = [knowing_the_shortest(view("code", [[25]])), view("docs", [[5] * 100])]
    with pytest.raises(Refused, match="'code': none of its 1 samples"):
        steps(stream(views, [1, 10**6], longest=10, tokens=10, policy="Drop"), 1)


def test_where_all_documents_that_fit_are_held_out_the_refusal_says_so():
    s = stream([view("code", [[25] * 9 + [8]])], [1], longest=10, policy="Drop", held_out=5)
    with pytest.raises(
        Refused, match=r"none of its 10 samples that are not held out .* lower evaluation\.tokens, or use"
    ):
        steps(s, 1)


def test_an_empty_source_is_refused_by_name():
    with pytest.raises(Refused, match="without a readable sample: docs"):
        stream([view("code", [[5]]), view("docs", [[], []])], [1, 1])


def test_a_source_that_reached_its_passes_leaves_and_the_others_go_on():
    s = stream([view("code", [[10] * 5]), view("docs", [[10] * 50])], [500, 500], tokens=100, passes=1)
    last = steps(s, 100)[-1]
    assert last.exhausted
    assert {q.source for q in last.sequences} == {"docs"}


def test_the_last_step_may_be_short():
    s = stream([view("code", [[30] * 7])], [1], tokens=100, passes=1)
    assert [(m.tokens, m.exhausted) for m in steps(s, 10)] == [(120, False), (90, True)]


def test_the_stream_is_that_of_version_1():
    views = [view("code", [[3, 9, 4], [8, 2], [5]]), view("docs", [[7, 6], [1, 12]])]
    s = stream(views, [700, 300], tokens=20, longest=6)
    found = [[(q.source, q.epoch, q.index, q.start, q.stop) for q in m.sequences] for m in steps(s, 3)]
    assert found == GOLDEN


def test_a_cursor_is_small():
    s = two_sources(3)
    cursor = steps(s, 40)[-1].cursor
    assert len(msgspec.json.encode(cursor)) < 400
    assert initial_cursor(s.mix).offset == 0


GOLDEN = [
    [("code", 0, 4, 0, 2), ("docs", 0, 0, 0, 6), ("code", 0, 5, 0, 5), ("code", 0, 1, 0, 6), ("code", 0, 1, 6, 9)],
    [("docs", 0, 0, 6, 7), ("code", 0, 0, 0, 3), ("docs", 0, 1, 0, 6), ("code", 0, 3, 0, 6), ("code", 0, 3, 6, 8)],
    [("code", 0, 2, 0, 4), ("docs", 0, 3, 0, 6), ("code", 1, 1, 0, 6), ("code", 1, 1, 6, 9), ("code", 1, 4, 0, 2)],
]


def test_every_source_that_leaves_between_two_cursors_is_named_and_none_that_had_left_before():
    s = stream([view(name, [[10] * 5]) for name in ("code", "docs", "web")], [1, 1, 1], tokens=30, passes=1)
    cursors = [m.cursor for m in steps(replace(s, batch=msgspec.structs.replace(s.batch, tokens_per_step=150)), 1)]
    _, end = replace(s, batch=msgspec.structs.replace(s.batch, tokens_per_step=150)).advance(cursors[0])
    assert [c.name for c in used_up(cursors[0], end)] == ["code", "docs", "web"]
    assert used_up(end, end) == []
