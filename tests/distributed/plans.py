"""Random legal plans, made without the planner: any order of tasks, any ring members, any packing."""

from __future__ import annotations

import random
from collections.abc import Sequence

from coxswain.layout import Layout, Replica
from coxswain.plan.values import Operation, Slice, StageOperations, Task
from tests.fuzzed_plans import head_group

Plan = tuple[tuple[Task, ...], tuple[StageOperations, ...]]


def ring_slices(sequence: int, length: int, members: Sequence[int]) -> tuple[Slice, ...]:
    """Head and tail of each member; chunks that are empty are left out."""
    count = 2 * len(members)
    cuts = [length * i // count for i in range(count + 1)]
    chunks = [(m, cuts[c], cuts[c + 1]) for i, m in enumerate(members) for c in (i, count - 1 - i)]
    return tuple(Slice(m, sequence, start, stop) for m, start, stop in chunks if stop > start)


def random_plan(
    lengths: Sequence[int], replicas: int, seed: int, rings: float = 0.6, idle: Sequence[int] = (), degree: int = 0,
    layout: Layout | None = None, key_heads: int = 1,
) -> Plan:  # fmt: skip
    """Sequences become rings with probability `rings` (of exactly `degree` members, if given), else packs; both of one to three.

    Replicas in `idle` get no task. Backward of a task comes some time after its forward, in the same order on all replicas
    of as many stages; the stages of a `layout` warm up as in 1F1B. Rings have replicas of one layer split and tensor degree.
    Neighbours in a ring may exchange heads, where every device has so many `key_heads`.
    """
    splits = [()] * replicas if layout is None else [_split(replica) for replica in layout.replicas]
    rng = random.Random(seed)
    workers = [r for r in range(replicas) if r not in idle]
    order = rng.sample(range(len(lengths)), len(lengths))
    tasks: list[Task] = []
    while order:
        split = splits[workers[0] if layout is None else rng.choice(workers)]
        alike = [w for w in workers if splits[w] == split]
        if len(alike) > 1 and rng.random() < rings:
            members = rng.sample(alike, min(len(alike), degree or rng.randint(2, len(alike))))
            shared = [order.pop() for _ in range(min(len(order), rng.choice((1, 1, 1, 2, 3))))]
            slices = tuple(s for sequence in shared for s in ring_slices(sequence, lengths[sequence], members))
            size = head_group(seed + len(tasks), len(members), key_heads)
            tasks.append(Task(len(tasks), "ring", tuple(members), slices, ulysses=size))
        else:
            replica, packed = rng.choice(workers), [order.pop() for _ in range(min(len(order), rng.randint(1, 3)))]
            whole = tuple(Slice(replica, s, 0, lengths[s]) for s in packed)
            tasks.append(Task(index=len(tasks), kind="pack", replicas=(replica,), slices=whole))
    delay = rng.randint(0, 2)  # tasks whose graph is alive beside the current one
    return tuple(tasks), tuple(
        _operations(tasks, r, stage, delay + depth - 1 - stage)
        for r, depth in enumerate(len(split) or 1 for split in splits)
        for stage in range(depth)
    )


def _split(replica: Replica) -> tuple[tuple[int, int], ...]:
    return tuple((stage.stop, len(stage.devices)) for stage in replica.stages)


def _operations(tasks: Sequence[Task], replica: int, stage: int, delay: int) -> StageOperations:
    """In the one global order of "forward i, backward i - delay", from which each stage takes its own: acyclic."""
    every = []
    for i in range(len(tasks) + delay):
        every += [Operation("F", i)] if i < len(tasks) else []
        every += [Operation("B", i - delay)] if i >= delay else []
    mine = tuple(o for o in every if replica in tasks[o.task].replicas)
    return StageOperations(replica=replica, stage=stage, operations=mine)
