"""When the ladder replaces a node, and which one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from coxswain.ladder.decide import decide
from coxswain.ladder.values import LEAST_GAIN, Change, Keep, Relayout, ReplaceNode, Rung
from coxswain.layout import Device
from tests.unit.ladder_views import SLOW, options, view


def test_the_node_that_costs_most_is_replaced_for_its_part_of_the_loss() -> None:
    speeds = {Device(0, 0): 0.8, Device(1, 0): 0.5, Device(1, 1): 0.5}
    nothing = replace(options(speeds), layouts=())
    one = view(
        action="ReplaceNode",
        speeds=speeds,
        planned=speeds,
        since=dict.fromkeys(speeds, 0),
        options=nothing,
        replace=1.0,
    )
    rung = decide(one)
    assert isinstance(rung, ReplaceNode) and rung.node == "n1"
    assert rung.gain == pytest.approx(12.0 * (1 - 9 / 12) * (1.0 / 1.2))


def test_what_a_lost_device_costs_is_no_reason_to_replace_the_node_of_a_slow_one() -> None:
    speeds = {Device(0, 0): 0.0, Device(1, 0): 0.5}
    one = view(
        action="ReplaceNode", speeds=speeds, planned=speeds, since=dict.fromkeys(speeds, 0), replace=1.0,
        options=replace(options(speeds), layouts=()), nodes={Device(1, 0): "n1"},
    )  # fmt: skip
    rung = decide(one)
    assert isinstance(rung, ReplaceNode) and (rung.node, rung.gain) == (
        "n1",
        pytest.approx(12.0 * (1 - 9 / 12) * 0.5 / 1.5),
    )


def test_a_node_is_replaced_where_another_fits_once_its_loss_reaches_the_seconds_of_replacing_it() -> None:
    settled = view(action="ReplaceNode", steps=100, planned={SLOW: 0.5}, replace=300.0)
    nothing = replace(options({SLOW: 0.5}), layouts=())
    rung = decide(replace(settled, options=nothing))
    assert isinstance(rung, ReplaceNode)
    assert (rung.node, rung.evidence, rung.gain) == ("n0", ((SLOW, 2.0),), pytest.approx(3.0))
    assert rung.devices == {SLOW}
    assert decide(replace(settled, options=nothing, replace=301.0)) == Keep()
    assert decide(replace(settled, options=nothing, replace=None)) == Keep()
    assert decide(replace(settled, options=nothing, action="Migrate")) == Keep()


def test_the_second_replacement_for_one_device_must_save_twice_as_much() -> None:
    nothing = replace(options({SLOW: 0.5}), layouts=())
    before = (Change(1, "ReplaceNode", frozenset({SLOW})),)
    one = view(action="ReplaceNode", steps=90, planned={SLOW: 0.5}, replace=150.0, options=nothing, changes=before)
    assert isinstance(decide(replace(one, replace=135.0)), ReplaceNode)
    assert decide(one) == Keep()


def test_a_change_of_layout_does_not_delay_a_replacement() -> None:
    nothing = replace(options({SLOW: 0.5}), layouts=())
    before = (Change(1, "Groups", frozenset({SLOW})),)
    one = view(action="ReplaceNode", steps=100, planned={SLOW: 0.5}, replace=300.0, options=nothing, changes=before)
    assert isinstance(decide(one), ReplaceNode)


def test_a_layout_that_is_due_comes_before_another_node() -> None:
    one = view(action="ReplaceNode", steps=100, replace=1.0)
    assert isinstance(decide(one), Relayout)
    assert isinstance(decide(replace(one, options=replace(options({SLOW: 0.5}), layouts=()))), ReplaceNode)


def asked(speeds: dict[Device, float], **changed: Any) -> Rung:
    """Where no layout makes up for these devices, which were slow for 100 steps."""
    since = dict.fromkeys(speeds, 0)
    nothing = replace(options(speeds), layouts=())
    return decide(
        replace(
            view(action="ReplaceNode", speeds=speeds, planned=speeds, since=since, options=nothing, replace=1.0),
            **changed,
        )
    )


def test_one_very_slow_device_costs_more_than_two_that_are_hardly_slow() -> None:
    rung = asked({Device(0, 0): 0.2, Device(1, 0): 0.9, Device(1, 1): 0.9})
    assert isinstance(rung, ReplaceNode) and rung.node == "n0"


def test_the_loss_of_a_node_counts_since_its_first_device_got_slow_and_from_now_on_where_the_onset_is_unknown() -> None:
    """It costs three seconds a step."""
    speeds = {Device(0, 0): 0.5, Device(0, 1): 0.5}
    first, second = speeds
    assert isinstance(asked(speeds, since={first: 90, second: 99}, replace=30.0), ReplaceNode)
    assert asked(speeds, since={first: 90, second: 99}, replace=30.1) == Keep()
    assert asked(speeds, since={}) == Keep()


@pytest.mark.parametrize("least_gain", [0.0, LEAST_GAIN, 0.5])
def test_a_node_is_replaced_for_half_a_percent_of_a_step_whatever_gain_a_change_of_layout_needs(
    least_gain: float,
) -> None:
    speeds = {SLOW: 0.5}
    for healthy, replaced in ((0.995 * 8, True), (0.9951 * 8, False)):
        nothing = replace(options(speeds, stay=8.0), layouts=(), healthy=healthy)
        rung = asked(speeds, options=nothing, seconds=8.0, least_gain=least_gain, since={SLOW: -1000})
        assert isinstance(rung, ReplaceNode) == replaced, healthy


def test_the_evidence_of_a_dead_device_is_a_slowdown_without_end() -> None:
    speeds = {SLOW: 0.0, Device(0, 2): 0.25}
    rung = asked(speeds, options=replace(options(speeds, stay=math.inf), layouts=()))
    assert isinstance(rung, ReplaceNode) and rung.evidence == ((SLOW, math.inf), (Device(0, 2), 4.0))
