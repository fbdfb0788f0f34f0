"""Runs the operation lists on the host; rings block until all members arrive.

A plan that could hang, hangs here.
"""

from __future__ import annotations

from collections import defaultdict

from coxswain.layout import Layout
from coxswain.plan.values import Operation, Placement, Task


def replay(placement: Placement, layout: Layout) -> list[str]:
    """Returns the faults of the operation lists.

    They are missing, foreign or repeated operations, a backward before its forward, and hangs.
    """
    lists = {(o.replica, o.stage): o.operations for o in placement.operations}
    stages = {(r, s) for r, replica in enumerate(layout.replicas) for s in range(len(replica.stages))}
    if set(lists) != stages or len(placement.operations) != len(stages):
        return [f"operations are listed for (replica, stage) {sorted(lists)}; the layout has {sorted(stages)}"]
    faults = [fault for (r, _), mine in sorted(lists.items()) for fault in _own(r, mine, placement.tasks)]
    return faults or _walk(lists, placement.tasks)


def _own(replica: int, mine: tuple[Operation, ...], tasks: tuple[Task, ...]) -> list[str]:
    """Demands each of the replica's tasks forward once, then backward once, and nothing else."""
    wanted = sorted((kind, t.index) for t in tasks if replica in t.replicas for kind in "FB")
    have = sorted((o.kind, o.task) for o in mine)
    if have != wanted:
        odd = sorted(set(have) ^ set(wanted)) or [x for x in have if have.count(x) > 1]
        return [f"replica {replica}: operation {odd[0][0]} of task {odd[0][1]} is missing, foreign or repeated"]
    place = {(o.kind, o.task): i for i, o in enumerate(mine)}
    late = [t for kind, t in place if kind == "F" and place["F", t] > place["B", t]]
    return [f"replica {replica}: task {late[0]} goes backward before forward"] if late else []


def _walk(lists: dict[tuple[int, int], tuple[Operation, ...]], tasks: tuple[Task, ...]) -> list[str]:
    """Advances stages: an operation runs once all members of its task have reached it."""
    at = dict.fromkeys(lists, 0)
    waiting: dict[tuple[int, Operation], set[int]] = defaultdict(set)
    ready = sorted(lists)
    while ready:
        stage = ready.pop()
        if at[stage] == len(lists[stage]):
            continue
        operation = lists[stage][at[stage]]
        here = waiting[stage[1], operation]
        here.add(stage[0])
        if len(here) == len(tasks[operation.task].replicas):
            del waiting[stage[1], operation]
            for replica in sorted(here):
                at[replica, stage[1]] += 1
                ready.append((replica, stage[1]))
    stuck = sorted(waiting.items(), key=lambda item: item[0][1].task)
    return [_hang(operation, here, tasks) for (_, operation), here in stuck]


def _hang(operation: Operation, here: set[int], tasks: tuple[Task, ...]) -> str:
    task = tasks[operation.task]
    absent = sorted(set(task.replicas) - here)
    return (
        f"hang: replica {min(here)} waits in {operation.kind} of task {task.index} (sequence {task.slices[0].sequence}) "
        f"for replica {absent[0]}, which is at another operation"
    )
