"""Operation lists: what each stage runs in a step, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

from coxswain.errors import Refused
from coxswain.layout import Layout
from coxswain.plan.values import Operation, StageOperations, Task


def operations(layout: Layout, tasks: Sequence[Task]) -> tuple[StageOperations, ...]:
    """Returns one list per replica and stage: forward and backward of its tasks in global order.

    Every replica follows the same order and skips tasks of others, so rings cannot wait for each
    other in a circle. Several stages need more than that: Refused.
    """
    deep = [r for r, replica in enumerate(layout.replicas) if len(replica.stages) > 1]
    if deep:
        stages = len(layout.replicas[deep[0]].stages)
        raise Refused(
            "PipelinesUnsupported",
            f"parallelism.pipeline: replica {deep[0]} has {stages} stages; only 1 is supported: set it to 1",
        )
    mine: list[list[Operation]] = [[] for _ in layout.replicas]
    for task in tasks:
        pair = (Operation("F", task.index), Operation("B", task.index))
        for replica in task.replicas:
            mine[replica].extend(pair)
    return tuple(StageOperations(replica=r, stage=0, operations=tuple(ops)) for r, ops in enumerate(mine))
