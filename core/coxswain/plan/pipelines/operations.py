"""Operation lists: what each stage runs in a step, in which order, and how long that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from coxswain.layout import Layout
from coxswain.plan.pipelines.lists import Floats, Operations, Place, joined, operations_of, places_of, stage_lists
from coxswain.plan.pipelines.one_forward_one_backward import one_forward_one_backward
from coxswain.plan.pipelines.queues import Queues, walk_waves
from coxswain.plan.pipelines.simulation import FORWARD, loads, schedule
from coxswain.plan.values import Operation, StageOperations, Task

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Schedule:
    """What every stage runs, in order, and when the last one ends."""

    operations: tuple[StageOperations, ...]
    seconds: float


def operations(
    layout: Layout, tasks: Sequence[Task], loss: float = 0.0, in_flight: int = 0
) -> tuple[StageOperations, ...]:
    """Returns one list per replica and stage, by replica, then stage.

    Every stage follows the tasks' global order in its forwards, and in its backwards, and skips tasks of others. With
    one stage a replica, backward follows its forward at once. `loss`, `in_flight`: see `ordered`.
    """
    if is_flat(layout):
        return _in_turn(layout, tasks)
    return ordered(layout, tasks, loss, in_flight).operations


def is_flat(layout: Layout) -> bool:
    """Whether every replica has one stage."""
    return all(len(replica.stages) == 1 for replica in layout.replicas)


def _in_turn(layout: Layout, tasks: Sequence[Task]) -> tuple[StageOperations, ...]:
    """Runs forward and backward of each task in global order, so rings cannot wait for each other in a circle."""
    mine: list[list[Operation]] = [[] for _ in layout.replicas]
    for task in tasks:
        pair = (Operation("F", task.index), Operation("B", task.index))
        for replica in task.replicas:
            mine[replica].extend(pair)
    return tuple(StageOperations(replica=r, stage=0, operations=tuple(ops)) for r, ops in enumerate(mine))


def ordered(layout: Layout, tasks: Sequence[Task], loss: float = 0.0, in_flight: int = 0) -> Schedule:
    """Orders the operations of all stages, wave by wave, and times them.

    `loss`: what the last stage does besides its layers, in layers. A stage keeps at most as many graphs as there are
    stages from it to the end (1F1B), and at most `in_flight` if that is not 0.
    """
    places, seconds, parts = places_of(layout), OperationSeconds(layout, tasks, loss), list[Operations]()
    clock = np.zeros(len(places))
    for _, wave in groupby(tasks, key=lambda task: task.wave or 0):
        mine = list(wave)
        lists = None if in_flight else one_forward_one_backward(places, mine)
        walk = lists and Queues(places, lists, tasks, seconds.of(lists)).walk(clock)
        if not lists or not walk or walk.stuck:
            lists = operations_of(schedule(layout, mine, loss, in_flight))
            walk = Queues(places, lists, tasks, seconds.of(lists)).walk(clock)
        parts.append(lists)
        clock = np.full(len(places), float(walk.ends.max()))
    return Schedule(stage_lists(places, joined(parts, len(places)), len(tasks)), float(clock.max(initial=0)))


def times(
    layout: Layout, tasks: Sequence[Task], lists: Sequence[StageOperations], loss: float = 0.0
) -> dict[Place, tuple[Span, ...]]:
    """Returns (start, stop) of each stage's operations, in seconds and in the order of its list.

    They end when `ordered` says. `lists`: by replica, then stage. ValueError where they hang.
    """
    places, found = places_of(layout), operations_of(lists)
    seconds, begins = OperationSeconds(layout, tasks, loss).of(found), np.zeros(found.task.size)
    for chosen, queues, walk in walk_waves(places, found, tasks, seconds):
        if walk.stuck:
            raise ValueError("these lists hang: an operation waits for one that waits for it")
        begins[chosen] = queues.begins(walk)
    spans = list(zip(begins.tolist(), (begins + seconds).tolist(), strict=True))
    return {
        places.name(at): tuple(spans[first:last]) for at, (first, last) in enumerate(pairwise(found.first.tolist()))
    }


def shares_of(layout: Layout, loss: float) -> list[list[float]]:
    """What each stage takes of the time of its replica's slowest one."""
    parts = [loads(replica, loss) for replica in layout.replicas]
    return [[part / max(mine) for part in mine] for mine in parts]


class OperationSeconds:
    """How long each operation of a list takes. A task's time is that of its replica's slowest stage."""

    def __init__(self, layout: Layout, tasks: Sequence[Task], loss: float) -> None:
        self._share = np.array([share for mine in shares_of(layout, loss) for share in mine])
        self._task = np.array([task.seconds or 1.0 for task in tasks])

    def of(self, lists: Operations) -> Floats:
        found: Floats = self._task[lists.task] * np.where(lists.backward, 1 - FORWARD, FORWARD)
        found *= self._share[lists.place]
        return found
