"""When the ladder replaces a node, and which one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coxswain.ladder.decide import decide
from coxswain.ladder.values import Change, Keep, ReplaceNode
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
