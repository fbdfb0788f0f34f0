"""Each rank and each trainer gets its own part of a plan, and the parts together are the plan."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from coxswain.config import ModelConfig, ParallelConfig
from coxswain.errors import Refused
from coxswain.layout import Device, Layout, uniform_layout
from coxswain.membership.values import Membership, Sequence
from coxswain.plan.lengths import draw_lengths
from coxswain.plan.step import plan_step
from coxswain.wire import StepDirective, StepPlan, StepPlans
from coxswain_coordinator.planning.committer import step_plan
from coxswain_coordinator.planning.parts import PlanParts
from coxswain_coordinator.state.session import Session
from coxswain_train.engine.step import parts
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_samples import committed, session

DEVICES = 8  # of a trainer
MODEL = ModelConfig(layers=4, hidden=512, heads=8, kv_heads=8, feed_forward=1024, vocabulary=320)


@cache
def planned(replicas: int, tokens: int) -> tuple[Layout, StepPlan]:
    """A step of GitHub's lengths, with rings."""
    lengths = [max(2, n) for n in draw_lengths("github", context=64 * 1024, tokens=tokens, seed=3).tolist()]
    layout = uniform_layout([Device(i // DEVICES, i % DEVICES) for i in range(replicas)], MODEL.layers)
    parallel = ParallelConfig(tokens_per_replica=8192, max_degree=16, hardware="h100-80g")
    placement = plan_step(lengths, layout, parallel, MODEL, None)
    sequences = tuple(Sequence("code", 0, i, 0, n, n) for i, n in enumerate(lengths))
    return layout, step_plan(1, Membership(0, sequences, None), placement)


def decoded(raw: msgspec.Raw) -> StepPlan:
    return msgspec.json.decode(raw, type=StepPlan)


def test_a_rank_gets_all_that_it_runs_and_nothing_of_others():
    layout, plan = planned(32, 1_500_000)
    found = PlanParts(plan)
    assert any(t.kind == "ring" for t in plan.tasks)
    for seat in layout.ranks():
        mine = decoded(found.of_seat(seat))
        assert parts(mine.tasks, seat.replica) == parts(plan.tasks, seat.replica)
        assert mine.operations == tuple(
            o for o in plan.operations if (o.replica, o.stage) == (seat.replica, seat.stage)
        )
        assert (mine.labels, mine.digest, mine.step, mine.sequences) == (plan.labels, plan.digest, plan.step, ())
        assert all(seat.replica in t.replicas for t in mine.tasks)


def wanted(plan: StepPlan, replicas: set[int]) -> list[tuple[int, object, Sequence]]:
    tasks = sorted(plan.tasks, key=lambda t: t.index)
    return [(t.index, s, plan.sequence(s.sequence)) for t in tasks for s in t.slices if s.replica in replicas]


def test_a_trainer_gets_the_slices_and_sequences_of_its_replicas_alone():
    layout, plan = planned(32, 1_500_000)
    found = PlanParts(plan)
    delivered = []
    for trainer in range(4):
        mine = {s.replica for s in layout.ranks() if s.device.trainer == trainer}
        part = decoded(found.of_replicas(frozenset(mine)))
        assert wanted(part, mine) == wanted(plan, mine)
        assert {s.replica for t in part.tasks for s in t.slices} <= mine
        assert len(part.sequences) == len(part.places) < len(plan.sequences)
        delivered += [s.sequence for t in part.tasks for s in t.slices if s.start == 0]
    assert sorted(delivered) == list(range(len(plan.sequences)))


@pytest.mark.timeout(120)
def test_a_part_of_twenty_thousand_sequences_on_1024_replicas_stays_below_64_kilobytes():
    layout, plan = planned(1024, 48_000_000)
    found = PlanParts(plan)
    assert len(plan.sequences) > 18_000
    assert len(msgspec.json.encode(plan)) > 1_000_000
    assert max(len(found.of_seat(seat)) for seat in layout.ranks()) < 64_000 / 2  # it travels twice


def test_a_part_is_encoded_once():
    layout, plan = planned(32, 1_500_000)
    found, seat = PlanParts(plan), layout.ranks()[3]
    assert found.of_seat(seat) is found.of_seat(seat)
    assert found.of_replicas(frozenset({1, 2})) is found.of_replicas(frozenset({2, 1}))


@pytest.fixture
def world(tmp_path) -> Session:
    found = session(make_job(tmp_path))
    found.add(committed(*range(8)))
    return found


def test_a_directive_and_plans_in_parts_have_the_form_of_whole_ones(world):
    cut = world.cut_of_rank(0)
    directive = msgspec.json.decode(msgspec.json.encode(world.part_of(world.directive(2), cut)), type=StepDirective)
    plans = msgspec.json.decode(msgspec.json.encode(world.parts_from(1, cut)), type=StepPlans).plans
    assert (directive.step, directive.plan) == (2, plans[1])
    assert [p.step for p in plans] == list(range(1, 8))
    world.request_stop(3)
    end = world.part_of(world.directive(3), cut)
    assert (end.end, end.plan) == ("Suspended", None)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_the_world_lacks_is_refused(world, rank):
    with pytest.raises(Refused, match=f"rank {rank}: generation 1 has 2 ranks"):
        world.cut_of_rank(rank)


def test_a_trainer_without_a_seat_gets_an_empty_part(world):
    found = msgspec.json.decode(
        msgspec.json.encode(world.parts_from(0, world.cut_of_trainer("trainer-7"))), type=StepPlans
    )
    assert (found.plans[0].tasks, found.plans[0].sequences) == ((), ())
