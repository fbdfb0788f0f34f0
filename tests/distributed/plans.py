"""Random legal plans, made without the planner: any order of tasks, any ring members, any packing."""

from __future__ import annotations

import random
from collections.abc import Sequence

from coxswain.plan.values import Operation, Slice, StageOperations, Task

Plan = tuple[tuple[Task, ...], tuple[StageOperations, ...]]


def ring_slices(sequence: int, length: int, members: Sequence[int]) -> tuple[Slice, ...]:
    """Head and tail of each member; chunks that are empty are left out."""
    count = 2 * len(members)
    cuts = [length * i // count for i in range(count + 1)]
    chunks = [(m, cuts[c], cuts[c + 1]) for i, m in enumerate(members) for c in (i, count - 1 - i)]
    return tuple(Slice(m, sequence, start, stop) for m, start, stop in chunks if stop > start)


def random_plan(
    lengths: Sequence[int], replicas: int, seed: int, rings: float = 0.6, idle: Sequence[int] = (), degree: int = 0
) -> Plan:
    """Sequences become rings with probability `rings` (of exactly `degree` members, if given), else packs of one to three.

    Replicas in `idle` get no task. Backward of a task comes some time after its forward, in the same order on all replicas.
    """
    rng = random.Random(seed)
    workers = [r for r in range(replicas) if r not in idle]
    order = rng.sample(range(len(lengths)), len(lengths))
    tasks: list[Task] = []
    while order:
        if len(workers) > 1 and rng.random() < rings:
            members = rng.sample(workers, min(len(workers), degree or rng.randint(2, len(workers))))
            sequence = order.pop()
            slices = ring_slices(sequence, lengths[sequence], members)
            tasks.append(Task(index=len(tasks), kind="ring", replicas=tuple(members), slices=slices))
        else:
            replica, packed = rng.choice(workers), [order.pop() for _ in range(min(len(order), rng.randint(1, 3)))]
            whole = tuple(Slice(replica, s, 0, lengths[s]) for s in packed)
            tasks.append(Task(index=len(tasks), kind="pack", replicas=(replica,), slices=whole))
    delay = rng.randint(0, 2)  # tasks whose graph is alive beside the current one
    return tuple(tasks), tuple(_operations(tasks, r, delay) for r in range(replicas))


def _operations(tasks: Sequence[Task], replica: int, delay: int) -> StageOperations:
    """In the one global order of "forward i, backward i - delay", from which each replica takes its own: acyclic."""
    every = []
    for i in range(len(tasks) + delay):
        every += [Operation("F", i)] if i < len(tasks) else []
        every += [Operation("B", i - delay)] if i >= delay else []
    mine = tuple(o for o in every if replica in tasks[o.task].replicas)
    return StageOperations(replica=replica, stage=0, operations=mine)
