"""What the planners' tests share: steps to plan, costs to plan them by, and a layout to check them on."""

from __future__ import annotations

import math
from builtins import sum as add
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from coxswain.cost import load_constants
from coxswain.cost.model import CostModel
from coxswain.layout import Device, Layout, uniform_layout
from coxswain.plan.pipelines.operations import operations
from coxswain.plan.planners import plan, planner
from coxswain.plan.problem import make_problem
from coxswain.plan.values import Placement

COST = CostModel(load_constants("h100-80g"))


def layout_of(replicas: int) -> Layout:
    return uniform_layout([Device(r, 0) for r in range(replicas)], layers=2)


def newer_sum(values: Iterable[float], start: float = 0) -> float:
    """As `sum` of Python 3.12 and later adds: without the rounding of each addition."""
    terms = [start, *values]
    return math.fsum(terms) if any(isinstance(x, float) for x in terms) else add(terms)


def given(replicas: int, capacity: int, **more: Any) -> dict[str, Any]:
    """Keywords of `plan` and `make_problem` with the usual values."""
    usual = {"cost": COST, "max_degree": replicas, "node_size": 8}
    return {"replicas": replicas, "capacity": capacity, **usual, **more}


def planned(balance: str, lengths: list[int], **numbers: Any) -> Placement:
    """A placement with its operations, as a worker would get it."""
    placement = plan(balance, lengths, **numbers)
    return replace(placement, operations=operations(layout_of(numbers["replicas"]), placement.tasks))


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[int], dict[str, Any]]:
    """Any step that fits: 1 to 40 replicas of any speeds, nodes of any size, sequences from 1 token to all that fits."""
    replicas, capacity = draw(st.integers(1, 40)), draw(st.integers(1, 8192))
    degree = draw(st.integers(1, replicas))
    longest = capacity * degree
    length = st.one_of(st.integers(1, longest), st.integers(1, capacity), st.sampled_from([1, capacity, longest]))
    speed = st.one_of(st.just(1.0), st.floats(0.1, 3))
    speeds = draw(st.one_of(st.none(), st.lists(speed, min_size=replicas, max_size=replicas)))
    numbers = given(replicas, capacity, max_degree=degree, node_size=draw(st.integers(1, 9)), speeds=speeds)
    return draw(st.lists(length, max_size=60)), numbers


__all__ = ["COST", "given", "layout_of", "make_problem", "plan", "planned", "planner", "steps"]
