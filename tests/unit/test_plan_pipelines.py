"""Operation lists of pipelines, made by one simulation, and judged by a slow machine that walks every message."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np
import pytest
from msgspec import UNSET

from coxswain.layout import Layout
from coxswain.plan.kinds import shape
from coxswain.plan.lengths import SETS, draw_lengths
from coxswain.plan.pipelines.operations import operations, ordered
from coxswain.plan.pipelines.replay import replay
from coxswain.plan.pipelines.simulation import Simulation, schedule
from coxswain.plan.planners import plan
from coxswain.plan.validator import validate
from coxswain.plan.values import Operation, Slice, StageOperations, Task
from tests.fuzzed_plans import KEY_HEADS, FuzzedPlan, fuzzed_plan, layout_of_shapes, placement_of, with_swap
from tests.unit.plan_cases import COST, given
from tests.unit.plan_machine import walk

Lists = tuple[StageOperations, ...]


def tasks_of(
    *members: tuple[int, ...] | tuple[tuple[int, ...], float], waves: Sequence[int] | None = None
) -> tuple[Task, ...]:
    """Tasks of one second, or so many, over these replicas; sequence number = task number."""
    found = []
    for i, each in enumerate(members):
        replicas, seconds = each if isinstance(each[0], tuple) else (each, 1.0)
        slices = tuple(Slice(r, i, k, k + 1) for k, r in enumerate(replicas))  # type: ignore[arg-type]
        wave = waves[i] if waves else UNSET
        found.append(Task(i, "ring" if len(slices) > 1 else "pack", replicas, slices, seconds, wave))  # type: ignore[arg-type]
    return tuple(found)


def equal(replicas: int, stages: int) -> Layout:
    return layout_of_shapes([((1, 1),) * stages] * replicas)


def text(lists: Lists) -> list[str]:
    return [" ".join(f"{o.kind}{o.task}" for o in stage.operations) for stage in lists]


def lists_of(layout: Layout, *each: str) -> Lists:
    places = [(r, s) for r, replica in enumerate(layout.replicas) for s in range(len(replica.stages))]
    return tuple(
        StageOperations(*place, tuple(Operation(o[0], int(o[1:])) for o in words.split()))  # type: ignore[arg-type]
        for place, words in zip(places, each, strict=True)
    )


def faults(layout: Layout, tasks: Sequence[Task], lists: Lists) -> list[str]:
    return replay(placement_of(layout, tuple(tasks), lists), layout)


def test_two_stages_keep_two_graphs_and_one() -> None:
    assert text(operations(equal(1, 2), tasks_of((0,), (0,), (0,)))) == ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]


def test_with_one_task_in_flight_a_pipeline_waits_for_each_backward() -> None:
    lists = operations(equal(1, 3), tasks_of((0,), (0,)), in_flight=1)
    assert text(lists) == ["F0 B0 F1 B1"] * 3


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("tasks", [1, 3, 8, 32])
def test_equal_tasks_leave_the_bubble_of_1f1b_and_no_more(stages: int, tasks: int) -> None:
    found = ordered(equal(1, stages), tasks_of(*[(0,)] * tasks))
    assert found.seconds == pytest.approx(stages - 1 + tasks)


def test_the_stage_with_the_loss_takes_the_longest() -> None:
    """Two layers and the loss of one more: the last stage computes all its time, after one short forward."""
    found = ordered(layout_of_shapes([((1, 1), (2, 1))]), tasks_of(*[(0,)] * 10), loss=1.0)
    assert found.seconds == pytest.approx(10 + 1 / 3)
    wide = ordered(layout_of_shapes([((1, 1), (2, 2))]), tasks_of(*[(0,)] * 10), loss=1.0)
    assert wide.seconds == pytest.approx(10 + (1 + 2) / 3 * 2 / 3 - 1 / 3, rel=0.1)


def test_unequal_tasks_do_not_throttle_a_deep_pipeline() -> None:
    """A stage that goes backward as soon as it can keeps one graph less from then on: up to 2.4 times as long."""
    for seed in range(20):
        rng = random.Random(seed)
        seconds = [rng.uniform(0.6, 1) for _ in range(40)]
        found = ordered(equal(1, 8), tasks_of(*[((0,), each) for each in seconds])).seconds
        assert found <= 1.2 * (sum(seconds) + 7 * max(seconds)), seed


def bubble(stages: int, seconds: Sequence[float]) -> tuple[float, float]:
    """The idle share of a pipeline that runs these tasks, and what 1F1B leaves at best."""
    found = ordered(equal(1, stages), tasks_of(*[((0,), each) for each in seconds])).seconds
    return 1 - sum(seconds) / found, (stages - 1) / (len(seconds) + stages - 1)


def even_packs(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """As few packs as tokens allow, longest first, each sequence into the lightest pack that has room for it."""
    packs: list[list[int]] = [[] for _ in range(-(-sum(lengths) // capacity))]
    for length in sorted(lengths, reverse=True):
        fitting = [pack for pack in packs if sum(pack) + length <= capacity] or [[]]
        lightest = min(fitting, key=lambda pack: float(COST.work_seconds(pack).sum()))
        packs += [] if lightest in packs else [lightest]
        lightest.append(length)
    return packs


@pytest.mark.parametrize("tasks", [8, 16, 32])
@pytest.mark.parametrize("stages", [4, 8])
@pytest.mark.parametrize("name", sorted(SETS))
def test_pipelines_of_one_length_class_each_have_hardly_more_than_the_ideal_bubble(
    name: str, stages: int, tasks: int
) -> None:
    """Eight pipelines share the sequences by length, with as many tokens each."""
    capacity, found = 8192, []
    lengths = np.sort(draw_lengths(name, context=capacity, tokens=8 * tasks * capacity, seed=0))[::-1]
    cuts = np.searchsorted(np.cumsum(lengths), lengths.sum() * np.arange(1, 8) / 8)
    for mine in np.split(lengths, cuts):
        found.append(bubble(stages, [COST.pack_seconds(pack) for pack in even_packs(mine.tolist(), capacity)]))
    ratio = sum(bubble for bubble, _ in found) / sum(ideal for _, ideal in found)
    print(f"{name}, {stages} stages, {tasks} tasks: bubble {ratio:.3f} x the ideal")
    assert ratio <= 1.15


@pytest.mark.parametrize("stages", [4, 8])
@pytest.mark.parametrize("name", sorted(SETS))
def test_a_planned_step_of_packs_on_pipelines_idles_hardly_more_than_the_ideal_bubble(name: str, stages: int) -> None:
    """Idle time of all pipelines until the last one ends."""
    lengths = draw_lengths(name, context=8192, tokens=8 * 16 * 8192, seed=0)
    placement = plan("makespan", lengths, **given(8, 8192))
    layout, busy = equal(8, stages), sum(t.seconds for t in placement.tasks)
    found = 1 - busy / (8 * ordered(layout, placement.tasks).seconds)
    ideal = (stages - 1) / (len(placement.tasks) / 8 + stages - 1)
    print(f"{name}, {stages} stages: idle {found:.3f}, {found / ideal:.3f} x the ideal")
    assert found <= 1.15 * ideal


def test_rings_at_different_places_of_two_pipelines_do_not_wait_for_each_other() -> None:
    """Each replica by itself would order 1F1B: replica 0 goes on to task 3 only after the backward of task 0, which
    replica 1 runs only after the forward of task 3."""
    layout, tasks = equal(2, 2), tasks_of((0, 1), (0,), (0,), (0, 1))
    alone = lists_of(
        layout, "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3", "F0 F3 B0 B3", "F0 B0 F3 B3"
    )  # fmt: skip
    assert walk(layout, tasks, alone) == "mixed up"
    assert faults(layout, tasks, alone)
    lists = operations(layout, tasks)
    assert faults(layout, tasks, lists) == []
    assert walk(layout, tasks, lists) == "done"


CIRCLE = equal(3, 4), tasks_of((1,), (1, 2, 0), (1,), (1, 0), ((2, 0), 7.02))


@pytest.mark.parametrize("tries", [10, 2, 1])
def test_rings_that_would_wait_in_a_circle_start_when_their_members_are_empty(tries: int) -> None:
    """One ring of them, at last all rings, and one task in flight when nothing else can help."""
    layout, tasks = CIRCLE
    assert not Simulation(layout, tasks, 0.0, 0, set()).run()
    lists = schedule(layout, tasks, tries=tries)
    assert faults(layout, tasks, lists) == []
    assert walk(layout, tasks, lists) == "done"


def flying(operations: Sequence[Operation]) -> int:
    """The most graphs alive at once."""
    alive = [sum(1 if o.kind == "F" else -1 for o in operations[: i + 1]) for i in range(len(operations))]
    return max(alive, default=0)


@pytest.fixture(scope="module")
def plans() -> list[FuzzedPlan]:
    return [fuzzed_plan(seed) for seed in range(250)]


def test_lists_of_the_simulation_end_on_the_machine_and_pass_the_validator(plans: list[FuzzedPlan]) -> None:
    for fuzzed in plans:
        lists = operations(fuzzed.layout, fuzzed.tasks)
        assert lists == operations(fuzzed.layout, fuzzed.tasks)
        assert (
            validate(
                placement_of(fuzzed.layout, fuzzed.tasks, lists), fuzzed.lengths, fuzzed.layout, 1 << 20, 12, KEY_HEADS
            )
            == []
        )
        assert walk(fuzzed.layout, fuzzed.tasks, lists) == "done"
        for stage in lists:
            assert flying(stage.operations) <= len(fuzzed.layout.replicas[stage.replica].stages) - stage.stage


@pytest.mark.parametrize(
    "seeds", [range(250), pytest.param(range(250, 10_000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_fuzzed_plans_pass_the_validator_and_end_on_the_machine(seeds: range) -> None:
    """The plans that `tests/distributed` runs on gloo."""
    for seed in seeds:
        fuzzed = fuzzed_plan(seed)
        assert validate(fuzzed.placement, fuzzed.lengths, fuzzed.layout, 1 << 20, 12, KEY_HEADS) == [], seed
        assert walk(fuzzed.layout, fuzzed.tasks, fuzzed.operations) == "done", seed


def test_fuzzed_plans_are_of_many_worlds_and_orders(plans: list[FuzzedPlan]) -> None:
    assert {len(p.layout.ranks()) for p in plans} == set(range(2, 13))
    assert {len(replica.stages) for p in plans for replica in p.layout.replicas} == {1, 2, 3}
    assert sum(len({shape(replica) for replica in p.layout.replicas}) > 1 for p in plans) >= 50
    assert sum(p.operations != operations(p.layout, p.tasks) for p in plans) >= 50
    rings = [t for p in plans for t in p.tasks if t.kind == "ring"]
    assert sum(len({s.sequence for s in t.slices}) > 1 for t in rings) >= 50
    assert (
        sum(len(p.layout.replicas[t.replicas[0]].stages) > 1 for p in plans for t in p.tasks if t.kind == "ring") >= 50
    )
    assert fuzzed_plan(7) == fuzzed_plan(7)


@pytest.mark.parametrize("near", [True, False], ids=["neighbours", "any two"])
def test_a_plan_with_two_swapped_operations_is_refused_just_when_it_hangs_or_mixes_messages_up(
    plans: list[FuzzedPlan], near: bool
) -> None:
    rng, seen = random.Random(5), {"done": 0, "hang": 0, "mixed up": 0}
    for fuzzed in plans:
        for _ in range(2):
            swapped = with_swap(rng, fuzzed.operations, near)
            outcome = walk(fuzzed.layout, fuzzed.tasks, swapped)
            assert bool(faults(fuzzed.layout, fuzzed.tasks, swapped)) == (outcome != "done"), text(swapped)
            seen[outcome] += 1
    assert min(seen.values()) >= 10


def with_warm_up(tasks: Sequence[int], most: int) -> str:
    """1F1B of a pipeline's tasks with up to `most` graphs."""
    words = [f"F{k}" for k in tasks[:most]]
    for k, later in zip_longest(tasks, tasks[most:]):
        words += [f"B{k}", *([] if later is None else [f"F{later}"])]
    return " ".join(words)


def deeper(rng: random.Random) -> tuple[Layout, tuple[Task, ...], Lists]:
    """Pipelines whose stages keep any number of graphs, never fewer than the next stage."""
    shapes = [tuple((1, rng.choice((1, 2))) for _ in range(rng.randint(2, 4))) for _ in range(rng.randint(1, 2))]
    words, members = list[str](), list[tuple[int]]()
    for replica, stages in enumerate(shapes):
        mine = range(len(members), len(members) + rng.randint(4, 9))
        words += [with_warm_up(mine, most) for most in sorted((rng.randint(1, 8) for _ in stages), reverse=True)]
        members += [(replica,)] * len(mine)
    layout = layout_of_shapes(shapes)
    return layout, tasks_of(*members), lists_of(layout, *words)


def test_every_plan_that_passes_on_gloo_and_hangs_on_nccl_is_refused_and_those_that_end_are_not() -> None:
    rng, only_nccl, fine = random.Random(0), 0, 0
    for _ in range(300):
        layout, tasks, lists = deeper(rng)
        assert walk(layout, tasks, lists, buffered=True) == "done"
        outcome = walk(layout, tasks, lists)
        found = faults(layout, tasks, lists)
        assert bool(found) == (outcome == "hang"), text(lists)
        assert all(fault.startswith("hang: replica ") for fault in found)
        only_nccl, fine = only_nccl + (outcome == "hang"), fine + (outcome == "done")
    assert only_nccl >= 60
    assert fine >= 60


GPIPE = ("F0 F1 F2 F3 B0 B1 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(
            lambda: (equal(1, 2), tasks_of(*[(0,)] * 4), GPIPE),
            "hang: replica 0, stage 1 waits to send the gradient of task 0 (sequence 0) for replica 0, stage 0, "
            "which is at another operation",
            id="a gradient that its receiver does not want yet",
        ),
        pytest.param(
            lambda: (equal(1, 2), tasks_of((0,), (0,)), ("F0 F1 B0 B1", "F1 B1 F0 B0")),
            "replica 0, stage 1: F of task 1 is where stage 0 has task 0; all stages of a replica need one order",
            id="messages that would be mixed up",
        ),
        pytest.param(
            lambda: (equal(1, 2), tasks_of((0,), (0,)), ("F0 F1 B0 B1", "F0 F1 B0")),
            "replica 0, stage 1: operation B of task 1 is missing, foreign or repeated",
            id="a backward of one stage is missing",
        ),
        pytest.param(
            lambda: (
                equal(2, 2),
                tasks_of((0, 1), (0, 1)),
                ("F0 B0 F1 B1", "F0 B0 F1 B1", "F0 F1 B0 B1", "F0 F1 B0 B1"),
            ),
            "hang: replica 0, stage 1 waits in B of task 0 (sequence 0) for replica 1, stage 1, which is at another operation",
            id="members of a ring that differ in order",
        ),
    ],
)
def test_a_fault_of_a_pipeline_is_named_with_replica_stage_and_task(
    change: Callable[[], tuple[Layout, tuple[Task, ...], tuple[str, ...]]], says: str
) -> None:
    layout, tasks, words = change()
    lists = lists_of(layout, *words)
    assert says in faults(layout, tasks, lists)
    assert walk(layout, tasks, lists) != "done"
