"""Steps that `cox plan strategy` draws from lengths of a file."""

from __future__ import annotations

import numpy as np
import pytest

from coxswain.plan.strategy.sample import cut_at, sampled_steps
from coxswain.plan.strategy.values import STEPS

LENGTHS = [7, 50, 300, 11, 1000]


@pytest.mark.parametrize("tokens", [1, 6, 7, 1368, 5000])
def test_a_step_has_the_tokens_that_were_asked_for_and_cuts_its_last_sequence_alone(tokens: int) -> None:
    for step in sampled_steps(LENGTHS, tokens, 0):
        assert int(step.sum()) == tokens
        assert step.dtype == np.int64
        assert set(step[:-1].tolist()) <= set(LENGTHS)
        assert 0 < step[-1] <= 1000


def test_a_step_that_ends_with_a_whole_sequence_has_no_empty_one_behind() -> None:
    assert [step.tolist() for step in sampled_steps([5], 40, 0)] == [[5] * 8] * STEPS


def test_a_step_has_as_many_tokens_as_all_lengths_where_none_are_asked_for() -> None:
    assert {int(step.sum()) for step in sampled_steps(LENGTHS, 0, 0)} == {sum(LENGTHS)}


def test_steps_differ_and_are_the_same_each_time() -> None:
    steps, again = ([step.tolist() for step in sampled_steps(LENGTHS, 20_000, 0, 7)] for _ in range(2))
    assert steps == again
    assert len({tuple(step) for step in steps}) == 7
    assert {length for step in steps for length in step[:-1]} == set(LENGTHS)


def test_no_sequence_of_a_step_is_longer_than_the_context() -> None:
    drawn = np.concatenate(sampled_steps([1000, 300], 50_000, 256))
    assert set(drawn.tolist()) >= {256, 1000 % 256, 300 % 256}
    assert drawn.max() == 256


@pytest.mark.parametrize(
    ("length", "context", "pieces"),
    [
        (256, 256, [256]),
        (257, 256, [256, 1]),
        (512, 256, [256, 256]),
        (700, 256, [256, 256, 188]),
        (700, 0, [700]),
        (2, 1, [1, 1]),
    ],
)
def test_a_length_above_the_context_is_cut_into_pieces_of_it_and_the_rest(
    length: int, context: int, pieces: list[int]
) -> None:
    assert cut_at(np.array([length]), context).tolist() == pieces


def test_shorter_lengths_stay_beside_one_that_is_cut() -> None:
    assert sorted(cut_at(np.array([3, 9, 4]), 4).tolist()) == [1, 3, 4, 4, 4]
