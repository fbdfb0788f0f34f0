"""Views of a small cluster with a slow device, and what the planner offers: for tests of the ladder."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from coxswain.ladder.values import Change, Option, Options, View
from coxswain.layout import Device, Layout, uniform_layout
from coxswain.plan.layouts.costs import Costs
from coxswain.plan.layouts.planner import healthy_plan
from coxswain.plan.layouts.result import layout_of
from tests.unit.layout_cases import costs_of

DEVICES = [Device(n, d) for n in range(2) for d in range(4)]
HERE, THERE = (uniform_layout(DEVICES, 8, pipeline=p) for p in (1, 2))
SLOW = Device(0, 1)
NODES = {device: f"n{device.trainer}" for device in DEVICES}


def options(speeds: dict[Device, float], stay: float = 12.0, seconds: float = 10.0, change: float = 5.0) -> Options:
    return Options(HERE, speeds, stay, 9.0, (Option("Groups", THERE, seconds, change),))


def view(slowdown: float = 2.0, steps: int = 10, **changed: Any) -> View:
    """`steps` after SLOW became slow; placements know it already."""
    speeds = {SLOW: 1 / slowdown}
    base = View(
        action="Migrate", step=100, layout=HERE, seconds=12.0, speeds=speeds, planned={},
        since={SLOW: 100 - steps}, nodes=NODES, options=options(speeds),
    )  # fmt: skip
    return replace(base, **changed)


def changed_at(*steps: int) -> tuple[Change, ...]:
    return tuple(Change(step, "Groups", frozenset({SLOW})) for step in steps)


@cache
def healthy() -> tuple[Costs, Layout]:
    costs = costs_of([[1.0] * 8] * 2, batch=16)
    return costs, layout_of(healthy_plan(costs), costs.cluster)
