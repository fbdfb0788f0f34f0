"""Which steps surprise the ranks of a world, so that they probe behind them."""

from __future__ import annotations

import pytest

from coxswain.stragglers.surprise import LEARN, REMEMBERED, StepLengths

USUAL = 16.0  # seconds; plans say half of it


def known(steps: int = LEARN) -> StepLengths:
    found = StepLengths()
    assert not any(found.surprises(USUAL, USUAL / 2) for _ in range(steps))
    return found


@pytest.mark.parametrize(
    ("seconds", "surprising"), [(1.09 * USUAL, False), (1.1 * USUAL, True), (40.0, True), (8.0, False)]
)
def test_a_step_surprises_that_is_a_tenth_longer_than_steps_are_beside_their_plans(
    seconds: float, surprising: bool
) -> None:
    assert known().surprises(seconds, USUAL / 2) == surprising


def test_a_step_that_is_planned_to_be_long_surprises_no_rank_and_one_that_is_not_does() -> None:
    assert not known().surprises(2 * USUAL, USUAL)
    assert known().surprises(USUAL, USUAL / 4)


@pytest.mark.parametrize(("lost", "surprising"), [(1.4, False), (1.5, True)])
def test_a_step_must_have_lost_more_than_a_probe_takes(lost: float, surprising: bool) -> None:
    short = StepLengths()
    for _ in range(LEARN):
        short.surprises(1.0, 1.0)
    assert short.surprises(1.0 + lost, 1.0) == surprising


def test_the_first_steps_and_those_without_a_plan_surprise_no_rank() -> None:
    assert not known(LEARN - 1).surprises(10 * USUAL, USUAL / 2)
    assert not known().surprises(10 * USUAL, 0.0)


def test_steps_that_stay_long_are_usual_once_they_are_most_of_those_remembered() -> None:
    found = known(REMEMBERED)
    surprised = [found.surprises(2 * USUAL, USUAL / 2) for _ in range(REMEMBERED)]
    assert surprised == [True] * (REMEMBERED // 2 + 1) + [False] * (REMEMBERED - REMEMBERED // 2 - 1)
