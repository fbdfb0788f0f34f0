"""How much longer the next change for the sake of one device waits, and what counts against it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from coxswain.ladder.decide import DWELL, FORGET, decide
from coxswain.ladder.values import Change, Keep, Option, Options, Relayout
from coxswain.layout import Device
from tests.unit.ladder_views import DEVICES, HERE, SLOW, THERE, changed_at, options, view


@pytest.mark.parametrize("period", [2, 3, 10, 40])
def test_the_changes_for_a_flapping_device_grow_as_the_logarithm_of_the_steps(period: int) -> None:
    changes: list[Change] = []
    planned: dict[Device, float] = {}
    layouts = [HERE, THERE]
    steps = 4000
    for step in range(steps):
        on = step // period % 2 == 0
        speeds = {SLOW: 0.4} if on else {}
        here = layouts[len(changes) % 2]
        there = layouts[(len(changes) + 1) % 2]
        gains = Options(here, speeds, 12.0, 9.0, (Option("Groups", there, 9.0 if speeds != planned else 12.0, 0.1),))
        rung = decide(
            view(
                step=step, layout=here, speeds=speeds, planned=planned, options=gains,
                since={SLOW: step - step % period}, changes=tuple(changes),
            )
        )  # fmt: skip
        if isinstance(rung, Relayout):
            changes.append(Change(step, rung.kind, rung.devices))
            planned = speeds
    assert 1 <= len(changes) <= 2 + math.log2(steps / DWELL)


@pytest.mark.parametrize(("changes", "rest"), [(1, 8), (2, 16), (3, 32)])
def test_the_next_change_for_a_device_rests_eight_steps_and_twice_as_many_each_time(changes: int, rest: int) -> None:
    gains = replace(options({SLOW: 0.5}), layouts=(Option("Groups", THERE, 6.0, 0.1),))
    for since, taken in ((rest - 1, False), (rest, True)):
        last = 100 - since
        one = view(options=gains, steps=60, changes=changed_at(*range(last - changes + 1, last + 1)))
        assert isinstance(decide(one), Relayout) == taken, since


def test_what_a_change_would_have_saved_counts_from_the_last_change_on_and_reaches_its_cost_at_the_cost() -> None:
    gains = replace(options({SLOW: 0.5}), layouts=(Option("Groups", THERE, 6.0, 30.0),))  # six a step
    other = (Change(90, "Groups", frozenset({Device(1, 0)})),)
    assert isinstance(decide(view(options=gains, steps=5)), Relayout) and decide(view(options=gains, steps=4)) == Keep()
    cost = replace(gains, layouts=(Option("Groups", THERE, 6.0, 60.0),))
    assert isinstance(decide(view(options=cost, steps=40, changes=other)), Relayout)
    assert decide(view(options=cost, steps=40, changes=(replace(other[0], step=91),))) == Keep()


def test_a_change_counts_for_4096_steps() -> None:
    gains = replace(options({SLOW: 0.5}), layouts=(Option("Groups", THERE, 6.0, 6.0 * FORGET),))
    for ago, taken in ((FORGET, False), (FORGET + 1, True)):
        one = view(step=5000, since={SLOW: 0}, options=gains, changes=changed_at(5000 - ago))
        assert isinstance(decide(one), Relayout) == taken


def test_a_second_device_does_not_wait_for_the_first_ones_back_off() -> None:
    other = Device(1, 0)
    flapped = tuple(Change(step, "Groups", frozenset({SLOW})) for step in range(10, 60, 10))
    speeds = {other: 0.5}
    one = view(speeds=speeds, since={other: 90}, options=options(speeds), changes=flapped)
    assert isinstance(decide(one), Relayout)
    assert decide(view(changes=flapped)) == Keep()


def test_a_change_for_another_device_does_not_delay_one() -> None:
    other = (Change(95, "Groups", frozenset({DEVICES[5]})),)
    assert isinstance(decide(view(steps=400, changes=other)), Relayout)
    assert decide(view(steps=400, changes=(Change(95, "Groups", frozenset({SLOW})),))) == Keep()


@pytest.mark.parametrize(("before", "factor"), [([(0,), (1,)], 2), ([(0,), (0,)], 4), ([(0, 1), (1,)], 4), ([(2,)], 1)])
def test_of_several_devices_the_one_counts_that_had_most_changes(before: list[tuple[int, ...]], factor: int) -> None:
    """Changes for each of them once are not two for one of them."""
    two = {DEVICES[0]: 0.5, DEVICES[1]: 0.5}
    changes = tuple(Change(step, "Groups", frozenset(DEVICES[d] for d in each)) for step, each in enumerate(before))
    gains = replace(options(two), layouts=(Option("Groups", THERE, 6.0, 6.0 * 90),))  # six a step
    for steps, taken in ((90 * factor, True), (90 * factor - 1, False)):
        one = view(step=1000, speeds=two, since=dict.fromkeys(two, 1000 - steps), options=gains, changes=changes)
        assert isinstance(decide(one), Relayout) == taken, steps
