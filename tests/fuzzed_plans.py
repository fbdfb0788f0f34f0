"""Legal plans drawn at random on any small layout: replicas may differ in stages, layers and tensor degrees.

The same seed gives the same plan. What checks plans in virtual time and what runs them on gloo share them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from coxswain.layout import Device, Layout, Replica, Stage
from coxswain.plan.chunks import ring_slices
from coxswain.plan.pipelines.operations import operations
from coxswain.plan.pipelines.replay import replay
from coxswain.plan.values import Placement, Slice, StageOperations, Task

KEY_HEADS = 12  # of a device that runs fuzzed plans
Shape = tuple[tuple[int, int], ...]  # per stage its layers and its tensor degree


@dataclass(frozen=True, slots=True)
class FuzzedPlan:
    """A plan with the layout and the lengths that it is for."""

    lengths: tuple[int, ...]
    layout: Layout
    tasks: tuple[Task, ...]
    operations: tuple[StageOperations, ...]

    @property
    def placement(self) -> Placement:
        return placement_of(self.layout, self.tasks, self.operations)


def placement_of(
    layout: Layout, tasks: tuple[Task, ...], lists: tuple[StageOperations, ...], capacity: int = 1 << 20
) -> Placement:
    """A placement of these lists; its times say nothing."""
    return Placement("fuzzed", len(layout.replicas), capacity, tasks, lists, 0.0, 0.0, 0.0, 0.0)


def layout_of_shapes(shapes: list[Shape]) -> Layout:
    """Replicas of these shapes on the devices of one trainer."""
    replicas, device = [], 0
    for shape in shapes:
        stages, start = [], 0
        for layers, tensor in shape:
            devices = tuple(Device(0, device + i) for i in range(tensor))
            stages.append(Stage(devices, start, start + layers))
            start, device = start + layers, device + tensor
        replicas.append(Replica(tuple(stages)))
    return Layout(tuple(replicas))


def fuzzed_plan(seed: int, ranks: tuple[int, int] = (2, 12), layers: int = 4, longest: int = 40) -> FuzzedPlan:
    """A legal plan on between `ranks` ranks, of stages 1 to 3 and tensor degrees 1 and 2."""
    rng = random.Random(seed)
    shapes = _shapes(rng, rng.randint(*ranks), layers)
    tasks, lengths = fuzzed_tasks(rng, shapes, longest)
    layout = layout_of_shapes(shapes)
    lists = operations(layout, tasks, loss=rng.random() * 2, in_flight=rng.randint(0, 3))
    for _ in range(rng.randint(0, 4)):  # other legal orders than those of the simulation
        other = with_swap(rng, lists)
        if not replay(placement_of(layout, tasks, other), layout):
            lists = other
    return FuzzedPlan(lengths, layout, tasks, lists)


def with_swap(rng: random.Random, lists: tuple[StageOperations, ...], near: bool = True) -> tuple[StageOperations, ...]:
    """The lists with two operations of one stage exchanged, neighbours or any; unchanged if none has two."""
    long = [i for i, stage in enumerate(lists) if len(stage.operations) > 1]
    if not long:
        return lists
    at = rng.choice(long)
    mine = list(lists[at].operations)
    one = rng.randrange(len(mine) - 1)
    two = one + 1 if near else rng.choice([k for k in range(len(mine)) if k != one])
    mine[one], mine[two] = mine[two], mine[one]
    changed = StageOperations(lists[at].replica, lists[at].stage, tuple(mine))
    return (*lists[:at], changed, *lists[at + 1 :])


def _shapes(rng: random.Random, ranks: int, layers: int) -> list[Shape]:
    """Shapes of one or two kinds that fit on so many ranks, and at least one."""
    kinds = [_shape(rng, layers, ranks) for _ in range(rng.randint(1, 2))]
    shapes: list[Shape] = []
    while fitting := [k for k in kinds if sum(t for s in (*shapes, k) for _, t in s) <= ranks]:
        shapes.append(rng.choice(fitting))
    return shapes


def _shape(rng: random.Random, layers: int, ranks: int) -> Shape:
    stages = rng.randint(1, min(3, ranks, layers))
    cuts = [0, *sorted(rng.sample(range(1, layers), stages - 1)), layers]
    tensors = [rng.choice((1, 2)) for _ in range(stages)] if ranks >= 2 * stages else [1] * stages
    return tuple((cuts[i + 1] - cuts[i], tensors[i]) for i in range(stages))


def head_group(seed: int, degree: int, key_heads: int = KEY_HEADS) -> int | UnsetType:
    """The size of a ring's head groups, if it has some: any that divides the degree and the key heads of a device."""
    sizes = [u for u in range(2, degree + 1) if degree % u == key_heads % u == 0]
    return random.Random(seed).choice([UNSET, *sizes])


def fuzzed_tasks(
    rng: random.Random, shapes: list[Shape], longest: int, most: int = 12
) -> tuple[tuple[Task, ...], tuple[int, ...]]:
    """Up to `most` tasks with random durations, and the lengths of their one to three sequences: rings over equal replicas."""
    tasks: list[Task] = []
    lengths: list[int] = []
    for index in range(rng.randint(1, most)):
        shape = rng.choice(shapes)
        equal = [r for r, other in enumerate(shapes) if other == shape]
        ring = len(equal) > 1 and rng.random() < 0.6
        members = tuple(rng.sample(equal, rng.randint(2, len(equal)) if ring else 1))
        mine = range(len(lengths), len(lengths) + rng.randint(1, 3))
        lengths += [rng.randint(1, longest) for _ in mine]
        slices = ring_slices(mine, lengths, members) if ring else [Slice(*members, i, 0, lengths[i]) for i in mine]
        kind: Literal["ring", "pack"] = "ring" if ring else "pack"
        tasks.append(Task(index, kind, members, tuple(slices), rng.choice((1.0, rng.random() * 9))))
    tasks = [replace(task, ulysses=head_group(task.index, len(task.replicas))) for task in tasks]
    return tuple(tasks), tuple(lengths)
