"""Operation lists: what each stage runs in a step, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

from coxswain.layout import Layout
from coxswain.plan.pipelines.simulation import schedule
from coxswain.plan.values import Operation, StageOperations, Task


def operations(
    layout: Layout, tasks: Sequence[Task], loss: float = 0.0, in_flight: int = 0
) -> tuple[StageOperations, ...]:
    """Returns one list per replica and stage, by replica, then stage.

    Every stage follows the tasks' global order in its forwards, and in its backwards, and skips tasks of others. With
    one stage a replica, backward follows its forward at once. `loss`, `in_flight`: see `schedule`.
    """
    if is_flat(layout):
        return _in_turn(layout, tasks)
    return schedule(layout, tasks, loss, in_flight).operations


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
