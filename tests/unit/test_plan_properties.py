"""What holds for every step that any planner places."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given as for_all
from hypothesis import settings

from coxswain.plan.assemble import digest
from coxswain.plan.makespan.meshes import FEW, SEQUENCES
from coxswain.plan.planners import BALANCES, SLOW, plan
from coxswain.plan.problem import make_problem
from coxswain.plan.simulate import drafts_of
from coxswain.plan.validator import validate
from coxswain.plan.values import Placement
from tests.unit import plan_reference as reference
from tests.unit.plan_cases import given, layout_of, planned, steps

FAST = pytest.mark.parametrize("balance", sorted({*BALANCES} - SLOW))
many = settings(max_examples=60)


def faults_of(placement: Placement, lengths: list[int], numbers: dict[str, Any]) -> list[str]:
    return validate(placement, lengths, layout_of(numbers["replicas"]), numbers["capacity"], numbers["max_degree"])


def any_degree(step: tuple[list[int], dict[str, Any]]) -> tuple[list[int], dict[str, Any]]:
    """The same step with rings of up to all replicas: a static mesh has to divide them."""
    lengths, numbers = step
    return lengths, {**numbers, "max_degree": numbers["replicas"]}


@many
@for_all(step=steps())
def test_any_step_is_covered_once_within_capacity_and_without_a_hang(step: tuple[list[int], dict[str, Any]]) -> None:
    lengths, numbers = step
    placement = planned("makespan", lengths, **numbers)
    assert faults_of(placement, lengths, numbers) == []
    alone = (t for t in placement.tasks if t.kind == "ring" and len({s.sequence for s in t.slices}) == 1)
    for task in alone:
        found = [(s.replica, s.start, s.stop) for s in task.slices]
        assert found == reference.ring_slices(lengths[task.slices[0].sequence], task.replicas)


@many
@for_all(step=steps())
def test_naive_plans_are_runnable_too(step: tuple[list[int], dict[str, Any]]) -> None:
    lengths, numbers = step
    assert faults_of(planned("naive", lengths, **numbers), lengths, numbers) == []


@many
@for_all(step=steps())
def test_a_static_mesh_is_runnable_with_its_packed_rings(step: tuple[list[int], dict[str, Any]]) -> None:
    lengths, numbers = any_degree(step)
    assert faults_of(planned("static", lengths, **numbers), lengths, numbers) == []


@FAST
@settings(max_examples=40)
@for_all(step=steps())
def test_the_same_input_gives_the_same_bytes(balance: str, step: tuple[list[int], dict[str, Any]]) -> None:
    lengths, numbers = any_degree(step)
    one, two = (plan(balance, lengths, **numbers) for _ in range(2))
    assert msgspec.json.encode(one) == msgspec.json.encode(two)
    assert digest(one) == digest(two)


@FAST
@settings(max_examples=40)
@for_all(step=steps())
def test_the_reported_times_are_those_of_replicas_that_walk_their_queues(
    balance: str, step: tuple[list[int], dict[str, Any]]
) -> None:
    lengths, numbers = any_degree(step)
    problem = make_problem(lengths, **numbers)
    placement = plan(balance, lengths, **numbers)
    ends = reference.run(problem, drafts_of(placement))
    assert placement.makespan_seconds == pytest.approx(max(ends, default=0.0))
    busy = sum(t.seconds * len(t.replicas) for t in placement.tasks)
    idle = 1 - busy / (numbers["replicas"] * placement.makespan_seconds) if ends else 0.0
    assert placement.idle_fraction == pytest.approx(idle, abs=1e-9)
    work = sum(t.seconds * len(t.replicas) * min(problem.speeds[[*t.replicas]]) for t in placement.tasks)
    assert placement.work_seconds == pytest.approx(work)


@many
@for_all(step=steps())
def test_no_plan_beats_the_lower_bound(step: tuple[list[int], dict[str, Any]]) -> None:
    lengths, numbers = step
    for balance in ("makespan", "naive"):
        placement = plan(balance, lengths, **numbers)
        assert placement.makespan_seconds >= placement.lower_bound_seconds * (1 - 1e-9)


@many
@for_all(step=steps())
def test_sequences_that_fit_one_replica_are_in_rings_only_where_replicas_are_few_and_others_do_not_fit(
    step: tuple[list[int], dict[str, Any]],
) -> None:
    lengths, numbers = step
    rings = [t for t in plan("makespan", lengths, **numbers).tasks if t.kind == "ring"]
    assert not rings or max(lengths) > numbers["capacity"]
    if numbers["replicas"] > FEW or len(lengths) > SEQUENCES * numbers["replicas"]:
        assert all(lengths[s.sequence] > numbers["capacity"] for t in rings for s in t.slices)
        assert all(len({s.sequence for s in t.slices}) == 1 for t in rings)


@FAST
@pytest.mark.parametrize(
    ("lengths", "replicas", "capacity"),
    [
        pytest.param([], 4, 10, id="empty"),
        pytest.param([1], 1, 1, id="one token"),
        pytest.param([1], 4, 10, id="idle replicas"),
        pytest.param([1] * 9, 4, 10, id="single tokens"),
        pytest.param([10], 4, 10, id="just C"),
        pytest.param([40], 4, 10, id="just N x C"),
        pytest.param([10] * 7, 1, 10, id="one replica"),
        pytest.param([3, 40, 10, 11], 4, 10, id="mixed"),
    ],
)
def test_edges_are_placed_like_anything_else(balance: str, lengths: list[int], replicas: int, capacity: int) -> None:
    numbers = given(replicas, capacity)
    placement = planned(balance, lengths, **numbers)
    assert faults_of(placement, lengths, numbers) == []
    assert {s.sequence for t in placement.tasks for s in t.slices} == set(range(len(lengths)))
