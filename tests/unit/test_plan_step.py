"""Planning of a running job's step, operation lists, and the simulation."""

from __future__ import annotations

from itertools import pairwise

import pytest

from coxswain.config import ModelConfig, ParallelConfig
from coxswain.errors import Refused
from coxswain.layout import Device, uniform_layout
from coxswain.plan.planners import plan
from coxswain.plan.problem import Draft, make_problem
from coxswain.plan.simulate import Timeline, ring_bytes, simulate
from coxswain.plan.step import plan_step, replicas_per_trainer
from coxswain.plan.values import Operation
from tests.unit.plan_cases import COST, given, layout_of

MODEL = ModelConfig(layers=4, hidden=128, heads=4, kv_heads=2, feed_forward=384, vocabulary=1024)


def settings(**more: object) -> ParallelConfig:
    return ParallelConfig(**{"tokens_per_replica": 1024, "max_degree": 4, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("balance", ["Makespan", "Naive", "Static"])
def test_a_step_comes_with_operations_and_rings_of_one_sequence(balance: str) -> None:
    placement = plan_step([4000, 1500, 30, 1024, 7], layout_of(4), settings(balance=balance), MODEL)
    assert len(placement.operations) == 4
    assert all(len({s.sequence for s in t.slices}) == 1 for t in placement.tasks if t.kind == "ring")
    assert placement.balance == balance.lower()


def test_a_sequence_that_no_ring_can_hold_is_refused_with_the_way_out() -> None:
    with pytest.raises(Refused, match="hold only 3072: use more replicas") as refused:
        plan_step([10, 3073], layout_of(3), settings(), MODEL)
    assert refused.value.reason == "CapacityLost"


def test_a_static_mesh_wider_than_the_maximum_degree_is_refused() -> None:
    with pytest.raises(Refused, match="mesh of 6 replicas"):
        plan_step([4000], layout_of(6), settings(balance="Static"), MODEL)


def test_a_planner_that_loses_sequences_is_stopped_with_the_first_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coxswain.plan.step.planner", lambda balance: lambda problem: [])
    with pytest.raises(
        AssertionError, match=r"2 faults in its own plan, first: sequence 0: covered up to token 0 of 10"
    ):
        plan_step([10, 20], layout_of(1), settings(), MODEL)


def test_the_case_of_a_balance_does_not_matter() -> None:
    assert plan("Naive", [5], **given(1, 10)).balance == "naive"


def test_an_unknown_balance_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Refused, match="use one of makespan, naive, static"):
        plan_step([10], layout_of(1), settings(balance="Magic"), MODEL)


def test_a_slow_replica_gets_less_work() -> None:
    lengths = [200] * 120
    placement = plan_step(lengths, layout_of(4), settings(), MODEL, speeds=[0.5, 1, 1, 1])
    tokens = [sum(s.stop - s.start for t in placement.tasks for s in t.slices if s.replica == r) for r in range(4)]
    assert tokens[0] < 0.65 * min(tokens[1:])


def test_operations_follow_the_global_order_on_every_replica() -> None:
    placement = plan_step([4000, 1500, 30, 1024, 7], layout_of(4), settings(), MODEL)
    for stage in placement.operations:
        mine = [t.index for t in placement.tasks if stage.replica in t.replicas]
        assert stage.operations == tuple(Operation(kind, i) for i in mine for kind in ("F", "B"))


def test_a_step_on_pipelines_orders_every_stage() -> None:
    layout = uniform_layout([Device(r, s) for r in range(3) for s in range(2)], layers=4, pipeline=2)
    placement = plan_step([2000, 1500, 30, 1024, 7, 900, 800, 1000], layout, settings(), MODEL)
    assert [(o.replica, o.stage) for o in placement.operations] == [(r, s) for r in range(3) for s in range(2)]
    for stage in placement.operations:
        mine = [t.index for t in placement.tasks if stage.replica in t.replicas]
        assert [o.task for o in stage.operations if o.kind == "F"] == mine
    assert any(
        first.kind == second.kind == "F" for o in placement.operations for first, second in pairwise(o.operations)
    )


def test_replicas_of_one_trainer_count_as_a_node() -> None:
    assert replicas_per_trainer(uniform_layout([Device(t, d) for t in range(2) for d in range(4)], layers=2)) == 4
    assert replicas_per_trainer(layout_of(3)) == 1
    uneven = [Device(0, 0), Device(1, 0), Device(1, 1)]
    assert replicas_per_trainer(uniform_layout(uneven, layers=2)) == 1
    across = [Device(0, 0), Device(0, 1), Device(0, 2), Device(1, 0)]
    assert replicas_per_trainer(uniform_layout(across, layers=2, pipeline=2)) == 2


def test_rounding_makes_no_idle_time_below_zero() -> None:
    assert Timeline((), (), busy=(0.1 + 0.2,), work=0.3, makespan=0.3).idle_fraction == 0.0


def test_a_ring_starts_when_its_last_member_is_free() -> None:
    problem = make_problem([100, 9000], **given(2, 8192))
    timeline = simulate(problem, [Draft((1,), (0,)), Draft((0, 1), (1,))])
    assert timeline.starts == (0.0, COST.pack_seconds([100]))
    assert timeline.makespan == timeline.starts[1] + COST.ring_seconds(9000.0, 2.0, True)


def test_a_ring_runs_at_the_speed_of_its_slowest_member() -> None:
    problem = make_problem([9000], **given(2, 8192, speeds=[1.0, 0.5]))
    timeline = simulate(problem, [Draft((0, 1), (0,))])
    assert timeline.makespan == 2 * COST.ring_seconds(9000.0, 2.0, True)
    assert timeline.idle_fraction == 0


def test_bytes_of_a_ring_are_split_by_the_hops_that_leave_a_node() -> None:
    problem = make_problem([30000], **given(16, 8192, node_size=2))
    inside, between = ring_bytes(problem, [Draft((0, 1, 2, 3), (0,))])
    assert inside == between == 3 * 30000 / 4 * 2 * COST.constants.kv_bytes_per_token
    assert ring_bytes(problem, [Draft((0,), (0,))]) == (0, 0)


@pytest.mark.parametrize(
    ("lengths", "change", "says"),
    [
        ([5, 0], {}, r"lengths\[1\] is 0"),
        ([5], {"speeds": [1.0]}, "1 numbers for 2 replicas"),
        ([5], {"speeds": [1.0, 0.0]}, r"speeds\[1\] is 0.0"),
        ([5], {"speeds": [1.0, float("nan")]}, r"speeds\[1\] is nan"),
        ([5], {"node_size": 0}, "node size is 0"),
    ],
)
def test_impossible_numbers_are_refused_by_name(lengths: list[int], change: dict[str, object], says: str) -> None:
    with pytest.raises(Refused, match=says):
        make_problem(lengths, **given(2, 8192, **change))
