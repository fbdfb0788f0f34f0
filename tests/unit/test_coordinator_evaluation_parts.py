"""Each rank and each trainer gets its own part of a step and of the evaluation behind it, and no more."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from coxswain.layout import Seat
from coxswain.membership.values import Sequence
from coxswain.plan.values import Operation, Slice, StageOperations, Task
from coxswain.wire import Evaluation, StepPlan
from coxswain_coordinator.planning.parts import PlanParts
from tests.layouts import layout_of

LAYOUT = layout_of([(1, 1), (1, 2)], [(2, 2)], [(1, 2)])
SEQUENCES = tuple(Sequence("code", 0, index, 0, 6, 6) for index in range(3))
HELD_OUT = tuple(Sequence("code", -1, index, 0, 4, 4) for index in (7, 8))


def tasks(first_task: int, first_place: int, places: int) -> tuple[Task, ...]:
    """Packs of one sequence, on one replica after another; the first one is a ring of two."""
    ring = Task(first_task, "ring", (0, 2), (Slice(0, first_place, 0, 2), Slice(2, first_place, 2, 4)))
    packs = (Task(first_task + n, "pack", (n % 3,), (Slice(n % 3, first_place + n, 0, 4),)) for n in range(1, places))
    return (ring, *packs)


def operations(mine: tuple[Task, ...], kinds: str) -> tuple[StageOperations, ...]:
    return tuple(
        StageOperations(r, s, tuple(Operation(kind, t.index) for t in mine if r in t.replicas for kind in kinds))  # type: ignore[arg-type]
        for r, replica in enumerate(LAYOUT.replicas)
        for s in range(len(replica.stages))
    )


STEP, BEHIND = tasks(0, 0, 3), tasks(3, 3, 2)
EVALUATION = Evaluation(HELD_OUT, BEHIND, operations(BEHIND, "F"), labels=6, first=3)
PLAN = StepPlan(
    1, 5, SEQUENCES, STEP, operations(STEP, "FB"), 15, "sha256:" + 64 * "0", 1.0, 1.0, evaluation=EVALUATION
)


def of_seat(seat: Seat, plan: StepPlan = PLAN) -> StepPlan:
    return msgspec.json.decode(PlanParts(plan).of_seat(seat), type=StepPlan)


def of_replicas(*replicas: int, plan: StepPlan = PLAN) -> StepPlan:
    return msgspec.json.decode(PlanParts(plan).of_replicas(frozenset(replicas)), type=StepPlan)


@pytest.mark.parametrize("seat", LAYOUT.ranks(), ids=lambda seat: f"{seat.replica}-{seat.stage}-{seat.tensor}")
def test_a_rank_gets_the_tasks_of_its_replica_and_the_operations_of_its_stage(seat: Seat) -> None:
    part = of_seat(seat)
    assert part.evaluation is not None
    for found, whole in ((part, PLAN), (part.evaluation, EVALUATION)):
        assert found.tasks == tuple(t for t in whole.tasks if seat.replica in t.replicas)
        assert found.operations == tuple(
            o for o in whole.operations if (o.replica, o.stage) == (seat.replica, seat.stage)
        )
        assert found.sequences == ()
    assert [part.trains(place) for place in range(5)] == [True] * 3 + [False] * 2


def test_parts_of_one_plan_that_were_asked_for_before_are_no_other_seats() -> None:
    found = PlanParts(PLAN)
    for _ in range(2):
        parts = [msgspec.json.decode(found.of_seat(seat), type=StepPlan) for seat in LAYOUT.ranks()]
        assert parts == [of_seat(seat) for seat in LAYOUT.ranks()]


def test_no_part_carries_the_speeds_of_all_replicas() -> None:
    """There may be thousands, and nothing but the coordinator reads them."""
    plan = replace(PLAN, speeds=(1.0, 0.5, 1.0))
    assert (of_seat(LAYOUT.ranks()[0], plan).speeds, of_replicas(0, 1, plan=plan).speeds) == ((), ())


@pytest.mark.parametrize("replicas", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_a_trainer_finds_each_of_its_sequences_by_its_place_and_gets_only_its_own_slices(
    replicas: tuple[int, ...],
) -> None:
    part = of_replicas(*replicas)
    slices = [s for t in part.all_tasks for s in t.slices]
    assert slices == [s for t in PLAN.all_tasks for s in t.slices if s.replica in replicas]
    for place in {s.sequence for s in slices}:
        assert part.sequence(place) == (*SEQUENCES, *HELD_OUT)[place]
        assert part.trains(place) == (place < 3)
    assert part.evaluation is not None
    assert part.operations == part.evaluation.operations == (), "a constructor runs none"
    assert len(part.sequences) + len(part.evaluation.sequences) == len({s.sequence for s in slices})


def test_a_step_without_an_evaluation_has_parts_without_one() -> None:
    alone = replace(PLAN, evaluation=None)
    assert of_seat(LAYOUT.ranks()[0], alone).evaluation is None
    assert of_replicas(0, plan=alone).evaluation is None
    assert of_replicas(0, plan=alone).trains(3)
