"""How speeds are rounded, when one counts as another, and how soon it is in placements."""

from __future__ import annotations

import pytest

from coxswain.ladder.lead import LONG, PLANNED, heeds_suspects, steps_until_placed, waits_for_reports
from coxswain.ladder.speeds import STEP, bucket, changed, speed_of
from coxswain.ladder.values import LEAST_GAIN, REPLACE_SECONDS
from coxswain.layout import Device
from tests.unit.ladder_views import SLOW


def test_the_constants_are_those_of_the_pages() -> None:
    assert (PLANNED, LONG, REPLACE_SECONDS, LEAST_GAIN) == (2, 1.0, 300.0, 0.005)
    assert [speed_of(power) for power in (0, 1, 28)] == [1.0, 0.952381, 0.255094]


@pytest.mark.parametrize(("seconds", "waits"), [(0.0, False), (LONG - 0.001, False), (LONG, True), (60.0, True)])
def test_a_speed_is_in_placements_a_step_earlier_where_steps_are_long(seconds: float, waits: bool) -> None:
    assert waits_for_reports(seconds) == waits
    assert steps_until_placed(seconds) == PLANNED + (not waits)
    assert heeds_suspects(seconds, accelerators=True) == waits and not heeds_suspects(seconds, accelerators=False)


@pytest.mark.parametrize(
    ("steps", "before", "power"),
    [(0, 5, 0), (0.01, 0, 1), (0.6, 0, 1), (3.7, 3, 3), (2.3, 3, 3), (3.8, 3, 4), (2.2, 3, 2), (7.6, 3, 8)],
)
def test_a_power_of_speed_stays_while_the_slowdown_is_within_three_quarters_of_a_power(
    steps: float, before: int, power: int
) -> None:
    assert bucket(STEP**steps, before) == power


@pytest.mark.parametrize(
    ("before", "now", "begins"),
    [(0, 5, True), (5, 6, True), (5, 5, False), (5, 4, False), (5, 0, True), (0, 0, False)],
)
def test_what_a_slow_device_has_cost_counts_on_while_it_is_no_slower(before: int, now: int, begins: bool) -> None:
    other = Device(1, 1)
    powers = [{other: 3} | ({SLOW: power} if power else {}) for power in (before, now)]
    assert changed(*powers) == ({SLOW} if begins else set())


@pytest.mark.parametrize("slowdown", [1e6, 1e7, 1e12])
def test_a_device_that_computes_is_never_taken_for_a_dead_one_however_slow_it_is(slowdown: float) -> None:
    assert speed_of(bucket(slowdown, 0)) == 1e-6
