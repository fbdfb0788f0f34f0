"""Documents that are evaluated are the same whatever happens, and in no pass trained on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coxswain.config import BatchConfig, PhaseConfig
from coxswain.errors import Refused
from coxswain.membership.held_out import EVALUATION_PASS, hold_out
from coxswain.membership.mix_record import record_of
from coxswain.membership.order import WINDOW
from coxswain.membership.stream import Stream
from coxswain.membership.values import Sequence
from tests.unit.membership_fakes import random_view, steps, stream, view
from tests.unit.membership_reference import pass_order

SEEDS = st.integers(0, 10_000)
calm = settings(deadline=None, max_examples=40)
POLICIES = st.sampled_from(["Split", "Truncate", "Drop"])
TOKENS = st.integers(2, 300)


def two_sources(seed: int, **options) -> Stream:
    return stream([random_view("code", seed), random_view("docs", seed)], [700, 300], **options)


def drawn(s: Stream, count: int = 400) -> list[Sequence]:
    return [q for m in steps(s, count) for q in m.sequences]


@calm
@given(SEEDS, POLICIES, st.sampled_from([25, 60]), TOKENS)
def test_each_source_draws_what_it_would_draw_alone_less_the_held_out_documents(seed, policy, longest, tokens):
    options = {"policy": policy, "longest": longest, "passes": 3}
    every, rest = drawn(two_sources(seed, **options)), two_sources(seed, **options, held_out=tokens)
    for name in ("code", "docs"):
        out = rest.held_out.of(name)
        assert out
        assert [q for q in drawn(rest) if q.source == name] == [
            q for q in every if q.source == name and q.index not in out
        ]


@calm
@given(SEEDS, POLICIES, st.sampled_from([25, 60]), TOKENS)
def test_an_evaluation_has_its_tokens_in_equal_parts_and_no_token_twice(seed, policy, longest, tokens):
    found = two_sources(seed, policy=policy, longest=longest, held_out=tokens).held_out
    parts = [sum(q.tokens for q in found.sequences if q.source == name) for name in ("code", "docs")]
    assert (sum(parts), parts[1] - parts[0] in (0, 1)) == (tokens, True)
    assert all(0 < q.tokens <= longest and q.stop <= q.length and q.epoch == EVALUATION_PASS for q in found.sequences)
    ids = [(q.source, q.index, token) for q in found.sequences for token in range(q.start, q.stop)]
    assert len(set(ids)) == len(ids)


def test_blocks_that_evaluations_read_are_fetched_side_by_side_before_a_length_is_read_and_none_without_tokens():
    """Of hundreds of sources one after another they take minutes."""
    s, fetched = two_sources(3), []
    hold_out(s.mix, s.batch, s.views, 40, fetched.append)
    assert [sorted(blocks) for blocks in fetched] == [["code", "docs"]]
    assert all(numbers for blocks in fetched for numbers in blocks.values())
    hold_out(s.mix, s.batch, s.views, 0, fetched.append)
    hold_out(s.mix, s.batch, s.views, 1, fetched.append)
    assert [sorted(blocks) for blocks in fetched[1:]] == [["docs"]]


def test_of_a_source_with_small_blocks_an_evaluation_fetches_those_of_one_window():
    """The held-out documents are few: the blocks of eight windows would be read for nothing ahead of the first step."""
    s, fetched = stream([view("code", [[10]] * 10 * WINDOW)], [1]), []
    hold_out(s.mix, s.batch, s.views, 40, fetched.append)
    assert [len(blocks["code"]) for blocks in fetched] == [WINDOW]


@pytest.mark.parametrize("length", [50, 51])
def test_pieces_of_a_long_document_that_is_evaluated_begin_at_its_first_token_and_cover_it(length):
    s = stream([view("code", [[length] * 4])], [1], longest=25)
    pieces = [(q.start, q.stop) for q in hold_out(s.mix, s.batch, s.views, length).sequences]
    assert pieces == [(at, min(at + 25, length)) for at in range(0, length, 25)]


@pytest.mark.parametrize("tokens", [1, 41, 100])
def test_the_place_of_a_source_in_the_mix_does_not_change_what_is_held_out(tokens):
    code, docs = random_view("code", 3), random_view("docs", 3)
    one, other = (stream(views, [1, 1], held_out=tokens).held_out for views in ([code, docs], [docs, code]))
    assert one == other


@pytest.mark.parametrize(("tokens", "fits"), [(200, True), (201, False)])
def test_half_of_a_sources_documents_may_be_held_out_however_many_pieces_they_are_split_into(tokens, fits):
    views = [view("code", [[100, 100], [100, 100]])]
    if fits:
        found = stream(views, [1], longest=25, held_out=tokens).held_out
        assert (len(found.sequences), len(found.indices["code"])) == (8, 2)
        return
    with pytest.raises(Refused, match="half of the 4 documents of source 'code' lack 1 tokens"):
        stream(views, [1], longest=25, held_out=tokens)


def test_the_held_out_documents_are_the_first_of_a_pass_of_their_own():
    blocks = [[5, 9, 4], [8, 7], [6, 6, 6]] * 5
    found = stream([view("code", blocks)], [1], held_out=40).held_out.sequences
    reference = pass_order(7, "code", -1, blocks)[: len(found)]
    assert [(q.index, q.length) for q in found] == reference
    assert [q.stop for q in found[:-1]] == [length for _, length in reference[:-1]]


@calm
@given(SEEDS, st.integers(1, 5000))
def test_neither_weights_nor_passes_nor_phases_nor_an_edit_change_what_is_held_out(seed, weight):
    before = two_sources(seed, held_out=100)
    phase = PhaseConfig(from_step=3, weights={"docs": weight})
    after = stream(
        [random_view("code", seed), random_view("docs", seed)], [weight, 1], passes=2, phases=(phase,), held_out=100
    )
    edited = before.under(record_of(after.mix, 1))
    assert before.held_out == after.held_out == edited.held_out
    out = {(q.source, q.index) for q in before.held_out.sequences}
    assert out.isdisjoint((q.source, q.index) for q in drawn(edited, 60))


@calm
@given(SEEDS, st.integers(1, 30))
def test_any_cursor_of_a_stream_with_held_out_documents_gives_the_same_continuation(seed, k):
    every = steps(two_sources(seed, held_out=120), 40)
    assert steps(two_sources(seed, held_out=120), 40 - k, every[k].cursor) == every[k:]


def test_another_seed_holds_out_other_documents_and_none_without_tokens():
    views = {"code": random_view("code", 3)}
    mix, batch = stream([views["code"]], [1]).mix, BatchConfig(tokens_per_step=200, max_sequence_tokens=60)
    one, other = (hold_out(m, batch, views, 200) for m in (mix, replace(mix, seed=8)))
    assert one.indices != other.indices
    assert hold_out(mix, batch, views, 0).sequences == ()


@pytest.mark.parametrize(("tokens", "fits"), [(20, True), (21, False)])
def test_more_than_half_of_a_sources_documents_is_refused_by_name(tokens, fits):
    views = [view("code", [[10, 10], [10, 10]])]
    if fits:
        assert len(stream(views, [1], held_out=tokens).held_out.indices["code"]) == 2
        return
    with pytest.raises(Refused, match="half of the 4 documents of source 'code' lack 1 tokens") as refused:
        stream(views, [1], held_out=tokens)
    assert refused.value.reason == "EvaluationTooLarge"
