"""Planning of a running job's step, operation lists, and the simulation."""

from __future__ import annotations

import builtins
import hashlib
import random
from itertools import pairwise
from typing import get_args

import msgspec
import pytest

from coxswain.api.parallelism import HybridData
from coxswain.config import ModelConfig, ParallelConfig, ReplicaShape, StageShape
from coxswain.cost import constants_for
from coxswain.cost.constants import load_hardware
from coxswain.cost.model import CostModel
from coxswain.errors import Refused
from coxswain.layout import Device, Layout, capacities_of, shaped_layout, uniform_layout
from coxswain.plan.kinds import nodes_of
from coxswain.plan.planners import BALANCES, SLOW, plan, planner
from coxswain.plan.problem import Draft, make_problem
from coxswain.plan.simulate import Timeline, drafts_of, ring_bytes, simulate, task_seconds
from coxswain.plan.step import plan_step
from coxswain.plan.values import Operation
from tests.unit.plan_cases import COST, given, layout_of, newer_sum

MODEL = ModelConfig(layers=4, hidden=128, heads=4, kv_heads=2, feed_forward=384, vocabulary=1024)


def settings(**more: object) -> ParallelConfig:
    return ParallelConfig(**{"tokens_per_replica": 1024, "max_degree": 4, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(("balance", "most"), [("Makespan", 1), ("Naive", 1), ("Static", 4)])
def test_a_step_comes_with_operations_and_only_a_mesh_has_rings_of_several_sequences(balance: str, most: int) -> None:
    placement = plan_step([4000, 1500, 30, 1024, 7], layout_of(12), settings(balance=balance), MODEL)
    assert len(placement.operations) == 12
    assert max(len({s.sequence for s in t.slices}) for t in placement.tasks if t.kind == "ring") == most
    assert placement.balance == balance.lower()


@pytest.mark.parametrize("balance", sorted({*BALANCES} - SLOW))
def test_every_shape_of_replica_gets_tasks_of_at_most_its_own_tokens(balance: str) -> None:
    """One that the job does not name gets the fewest of all."""
    one, two = ReplicaShape((StageShape(4),), 2, 512), ReplicaShape((StageShape(2), StageShape(2)), 2)
    devices = [Device(0, d) for d in range(7)]
    parallel = settings(balance=balance, layout=(two, one))
    layout = shaped_layout(devices, (two, one, ReplicaShape((StageShape(4),))))
    assert capacities_of(layout, parallel) == [1024, 1024, 512, 512, 512]
    other = shaped_layout(devices, (two, ReplicaShape((StageShape(1), StageShape(2), StageShape(1)))))
    assert capacities_of(other, parallel) == [1024, 1024, 512]
    placement = plan_step([1400, 900, 700, 500, 400, 300, 200, 150, 90, 40] * 2, layout, parallel, MODEL)
    most = [0] * 5
    for task in placement.tasks:
        for r in task.replicas:
            most[r] = max(most[r], sum(s.stop - s.start for s in task.slices if s.replica == r))
    assert max(most[:2]) > 512 >= max(most[2:]) > 0


@pytest.mark.parametrize(
    ("balance", "replicas", "golden"),
    [
        ("Makespan", 1, "dbfd05b0fec30d2b"),
        ("Makespan", 4, "89f17924e3494a0f"),
        ("Makespan", 6, "f6293093772c509d"),
        ("Naive", 1, "1721be804584db03"),
        ("Naive", 4, "692511ae6e88568e"),
        ("Naive", 6, "0a8f60ef5a794acf"),
    ],
)
def test_plans_of_equal_replicas_of_one_stage_keep_their_bytes(balance: str, replicas: int, golden: str) -> None:
    """A placement is stored, and people compare its digest, as `cox plan step` prints it."""
    layout = uniform_layout([Device(r // 2, r % 2) for r in range(replicas)], layers=4)
    lengths = [1000, 1500, 30, 1024, 7, 900, 600] * 3
    placement = plan_step(lengths, layout, settings(tokens_per_replica=1536, balance=balance), MODEL)
    assert hashlib.sha256(msgspec.json.encode(placement)).hexdigest()[:16] == golden


@pytest.mark.parametrize("balance", sorted({*BALANCES} - SLOW))
def test_a_plan_has_the_same_bytes_with_every_version_of_python(balance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = random.Random(4)
    steps = [[int(draws.lognormvariate(5.5, 1.2)) % 2000 + 1 for _ in range(60)] for _ in range(12)]

    def plans() -> list[bytes]:
        asked = ((lengths, layout) for lengths in steps for layout in (layout_of(8), UNEQUAL))
        return [msgspec.json.encode(plan_step(*each, settings(balance=balance), MODEL)) for each in asked]

    before = plans()
    monkeypatch.setattr(builtins, "sum", newer_sum)
    assert plans() == before


def test_a_job_may_have_every_balance_that_runs_and_no_other() -> None:
    offered = get_args(HybridData.model_fields["balance"].annotation)
    assert sorted(balance.lower() for balance in offered) == sorted(BALANCES)
    assert set(BALANCES) > SLOW


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


def test_the_planned_time_of_pipelines_has_their_bubble() -> None:
    layout = uniform_layout([Device(0, s) for s in range(2)], layers=4, pipeline=2)
    one = plan_step([1024], layout, settings(), MODEL)
    assert one.makespan_seconds == pytest.approx(one.tasks[0].seconds * (1 + STAGES[0] / STAGES[1]))
    assert one.idle_fraction == pytest.approx(1 - STAGES[1] / sum(STAGES))
    assert one.lower_bound_seconds == pytest.approx(one.makespan_seconds), "nothing ends one sequence earlier"


def test_a_ring_over_pipelines_keeps_all_its_members_busy() -> None:
    layout = uniform_layout([Device(r, s) for r in range(2) for s in range(2)], layers=4, pipeline=2)
    ring = plan_step([2000], layout, settings(), MODEL)
    assert [task.replicas for task in ring.tasks] == [(0, 1)]
    assert ring.idle_fraction == pytest.approx(1 - STAGES[1] / sum(STAGES))


STAGES = 2.0, 2 + 128 * 1024 / (128 * (2 * 4 + 2 * 2) * 32 + 3 * 128 * 384)  # layers, and the loss in layers


UNEQUAL = Layout(
    (
        *uniform_layout([Device(0, 0), Device(0, 1), Device(0, 2), Device(0, 3)], 4, pipeline=2).replicas,
        *uniform_layout([Device(1, d) for d in range(4)], 4, tensor=2).replicas,
        *uniform_layout([Device(1, 4)], 4).replicas,
    )
)


@pytest.mark.parametrize("balance", ["Makespan", "Naive", "Static"])
def test_unequal_replicas_get_what_suits_them_and_rings_of_equal_members(balance: str) -> None:
    lengths = [2000, 1500, 1800, *[300, 500, 700, 1000] * 12]
    placement = plan_step(lengths, UNEQUAL, settings(balance=balance), MODEL)
    rings = [set(t.replicas) for t in placement.tasks if t.kind == "ring"]
    assert len(rings) >= 3
    assert all(ring in ({0, 1}, {2, 3}) for ring in rings)
    tokens = [sum(s.stop - s.start for t in placement.tasks for s in t.slices if s.replica == r) for r in range(5)]
    assert min(tokens[2:4]) > 1.5 * tokens[4] > 0  # two devices that share each layer, against one device
    assert sum(tokens[:2]) > 1.5 * tokens[4]


def test_work_is_dealt_to_unequal_replicas_by_their_rates() -> None:
    lengths = [300, 500, 700, 1000] * 40
    placement = plan_step(lengths, UNEQUAL, settings(), MODEL)
    busy = [sum(t.seconds for t in placement.tasks if r in t.replicas) for r in range(5)]
    assert max(busy) <= 1.05 * min(busy)
    assert placement.makespan_seconds <= 1.15 * placement.lower_bound_seconds


def test_a_sequence_that_only_one_kind_of_replica_can_hold_goes_there() -> None:
    problem = make_problem([100, 128, 30], **given(4, [64, 64, 128, 128], kinds=[0, 0, 0, 1]))
    assert problem.kinds.tolist() == [0, 0, 1, 2]
    drafts = planner("makespan")(make_problem([100, 250, 30], **given(4, [64, 64, 128, 128], kinds=[0, 0, 1, 1])))
    assert {d.sequences: set(d.members) for d in drafts if 1 in d.sequences} == {(1,): {2, 3}}
    with pytest.raises(Refused, match="has 257 tokens, but 2 replicas of 128 tokens hold only 256"):
        make_problem([100, 257], **given(4, [64, 64, 128, 128]))


@pytest.mark.parametrize("kinds", [[0, 0, 1, 1], [0, 1, 0, 1], [3, 3, 3, 0]])
@pytest.mark.parametrize("balance", ["makespan", "naive", "static"])
def test_every_sequence_is_placed_once_on_replicas_of_one_kind(balance: str, kinds: list[int]) -> None:
    rng = random.Random(1)
    for _ in range(20):
        lengths = [rng.randint(1, 16) for _ in range(rng.randint(0, 30))]
        drafts = planner(balance)(make_problem(lengths, **given(4, 8, kinds=kinds)))
        assert sorted(i for d in drafts for i in d.sequences) == list(range(len(lengths)))
        assert all(len({kinds[r] for r in d.members}) == 1 for d in drafts)


def test_replicas_on_the_same_trainers_share_a_node() -> None:
    def nodes(*devices: tuple[int, int], pipeline: int = 1) -> list[int]:
        return nodes_of(uniform_layout([Device(*d) for d in devices], layers=2, pipeline=pipeline))

    assert nodes(*((t, d) for t in range(2) for d in range(4))) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert nodes((0, 0), (1, 0), (1, 1)) == [0, 1, 1]
    assert nodes((1, 0), (0, 0), (1, 1)) == [0, 1, 0]
    assert nodes((0, 0), (0, 1), (0, 2), (1, 0), pipeline=2) == [0, 1]
    assert nodes((0, 0), (1, 0), (0, 1), (1, 1), pipeline=2) == [0, 0]


def test_a_ring_on_nodes_of_different_sizes_stays_inside_the_one_that_is_large_enough() -> None:
    layout = uniform_layout(
        [Device(0, 0), *(Device(1, d) for d in range(3)), *(Device(2, d) for d in range(2))], layers=4
    )
    placement = plan_step([3000], layout, settings(max_degree=3), MODEL)
    assert placement.tasks[0].replicas == (1, 2, 3)


@pytest.mark.parametrize("balance", ["makespan", "static"])
def test_the_seconds_of_a_task_over_the_slowest_speed_are_the_planned_ones(balance: str) -> None:
    speeds, rng = [1.0, 0.5, 0.8, 1.25, 1.0, 1.0], random.Random(3)
    lengths = [rng.randint(1, 20_000) for _ in range(40)]
    problem = make_problem(lengths, **given(6, 8192, speeds=speeds, nodes=[0, 1, 1, 1, 2, 2]))
    placement = plan(balance, lengths, **given(6, 8192, speeds=speeds, nodes=[0, 1, 1, 1, 2, 2]))
    seconds_of = task_seconds(problem)
    for task, draft in zip(placement.tasks, drafts_of(placement), strict=True):
        assert task.seconds == seconds_of(draft.members, draft.sequences) / min(speeds[r] for r in task.replicas)
        own = [lengths[i] for i in draft.sequences]
        inside = problem.inside_node(draft.members)
        expected = (
            COST.pack_seconds(own) if task.kind == "pack" else COST.packed_ring_seconds(own, len(draft.members), inside)
        )
        assert seconds_of(draft.members, draft.sequences) == pytest.approx(expected)


def test_rounding_makes_no_idle_time_below_zero() -> None:
    assert Timeline((), (), busy=(0.1 + 0.2,), work=0.3, makespan=0.3).idle_fraction == 0.0


def test_a_ring_starts_when_its_last_member_is_free() -> None:
    problem = make_problem([100, 9000], **given(2, 8192))
    timeline = simulate(problem, [Draft((1,), (0,)), Draft((0, 1), (1,))])
    assert timeline.starts == (0.0, COST.pack_seconds([100]))
    assert timeline.makespan == timeline.starts[1] + COST.ring_seconds(9000.0, 2.0, True)


@pytest.mark.parametrize("members", [(0, 1, 2), (0, 2, 1), (1, 2, 0)])
def test_a_ring_with_one_member_on_another_node_takes_what_links_between_nodes_take(members: tuple[int, ...]) -> None:
    """Wherever that member stands in the ring, and whether rings are timed together or one by one."""
    cost = CostModel(msgspec.structs.replace(COST.constants, between_nodes_gbps=0.1))
    problem = make_problem([9000], **given(4, 8192, nodes=[0, 1, 0, 1], cost=cost))
    expected = cost.ring_seconds(9000.0, 3.0, False)
    assert expected > cost.ring_seconds(9000.0, 3.0, True)
    assert simulate(problem, [Draft(members, (0,))]).seconds == (expected,)
    assert task_seconds(problem)(members, (0,)) == expected


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
        ([5], {"speeds": [1e-12, 9e-13]}, r"speeds\[1\] is 9e-13; speeds must be from 1e-12 to 1e\+12"),
        ([5], {"speeds": [1e12, float("inf")]}, r"speeds\[1\] is inf"),
        ([5], {"node_size": 0}, "node size is 0"),
        ([5], {"stages": [1, 0]}, "stages is 0"),
        ([5], {"nodes": [1, 0, 1]}, "nodes has 3 numbers for 2 replicas"),
    ],
)
def test_impossible_numbers_are_refused_by_name(lengths: list[int], change: dict[str, object], says: str) -> None:
    with pytest.raises(Refused, match=says):
        make_problem(lengths, **given(2, 8192, **change))


def test_a_profile_is_what_a_step_is_timed_by() -> None:
    """Its devices take twice as long for a token as those of the policy's hardware."""
    shipped = load_hardware("cpu")
    slow = msgspec.structs.replace(
        shipped,
        rates=msgspec.structs.replace(shipped.rates, linear_tflops=shipped.rates.linear_tflops / 2, task_ms=0.0),
    )
    placement = plan_step([64] * 4, layout_of(2), settings(hardware="cpu"), MODEL, hardware=slow)
    assert placement.makespan_seconds == CostModel(constants_for(slow, MODEL)).pack_seconds([64, 64])
