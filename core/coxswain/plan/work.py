"""The work that a plan gives to each member of each task, apart from how fast the member is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from coxswain.cost.model import CostModel
from coxswain.plan.head_groups import ring_seconds
from coxswain.plan.values import Placement, Task


def work_of(placement: Placement, cost: CostModel, nodes: Sequence[int]) -> dict[tuple[int, int], float]:
    """Seconds at speed 1 of each (task, replica), waiting for other members excluded.

    A replica of speed v needs 1/v of it. `nodes`: the node of each replica, as in `Problem`.
    """
    return {
        (task.index, r): work for task in placement.tasks for work in (_work(task, cost, nodes),) for r in task.replicas
    }


def _work(task: Task, cost: CostModel, nodes: Sequence[int]) -> float:
    lengths = Counter[int]()
    for piece in task.slices:
        lengths[piece.sequence] += piece.stop - piece.start
    if task.kind == "pack":
        return cost.pack_seconds([*lengths.values()])
    return ring_seconds(cost, [*lengths.values()], [nodes[r] for r in task.replicas], task.ulysses or 1)
