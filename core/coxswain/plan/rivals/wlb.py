"""WLB-LLM's packing by workload (OSDI'25, section 4.1; public baseline: hao-ai-lab/distca, planner/wlb_planner.py).

Faithful: documents, longest first, go to the micro-batch with the least workload if it has room for the tokens, else
to the one with the fewest tokens; the workload of a document is (s/b)^2 + s/b. Micro-batches differ in tokens up to
the memory, all groups of the mesh run equally many, and every document is cut over its whole group.

Left open, decided at its best: b is where attention costs as much as all else (the cost model's); the mesh is the
least that holds the longest document; no document waits for a later step, since a step is placed whole, so a
document without room raises the number of micro-batches; of that number and the next few the fastest is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace

from coxswain.plan.problem import Draft, Problem
from coxswain.plan.rivals.mesh import mesh
from coxswain.plan.simulate import simulate, task_seconds

TRIES = 4  # numbers of micro-batches beyond the least that fits


def wlb(problem: Problem) -> list[Draft]:
    groups = mesh(problem)
    capacity = len(groups[0]) * problem.capacity
    lengths: list[int] = problem.lengths.tolist()
    balanced = problem.cost.linear / problem.cost.attention
    rounds, plans = -(-sum(lengths) // (capacity * len(groups))), list[list[Draft]]()
    while len(plans) < TRIES:
        packs = pack(lengths, rounds * len(groups), capacity, balanced)
        plans += [] if packs is None else [deal(problem, groups, packs)]
        rounds += 1 if plans else 1 + rounds // 32
    return min(plans, key=lambda drafts: simulate(problem, drafts).makespan)


def pack(lengths: list[int], count: int, capacity: int, balanced: float) -> list[list[int]] | None:
    """Returns `count` micro-batches of at most `capacity` tokens; None where a document finds no room.

    `balanced`: the length at which attention costs as much as all else.
    """
    packs: list[list[int]] = [[] for _ in range(count)]
    work, tokens = [0.0] * count, [0] * count
    lightest, shortest = ([(0.0, p) for p in range(count)] for _ in range(2))
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        best = _least(lightest, work)
        if tokens[best] + lengths[i] > capacity:
            best = _least(shortest, tokens)
        if tokens[best] + lengths[i] > capacity:
            return None
        packs[best].append(i)
        tokens[best] += lengths[i]
        work[best] += (lengths[i] / balanced) ** 2 + lengths[i] / balanced
    return packs


def _least(heap: list[tuple[float, int]], values: Sequence[float]) -> int:
    """Returns the index of the least value; entries of the heap may be out of date, never too great."""
    while heap and heap[0][0] != values[heap[0][1]]:
        heapreplace(heap, (values[heap[0][1]], heap[0][1]))
    return heap[0][1]


def deal(problem: Problem, groups: list[tuple[int, ...]], packs: list[list[int]]) -> list[Draft]:
    """Deals the packs in rounds, one a group: the longest of a round to the group that ends first."""
    seconds_of = task_seconds(problem)
    timed = sorted(((seconds_of(groups[0], p), p) for p in packs if p), key=lambda t: (-t[0], t[1]))
    ends, drafts = [0.0] * len(groups), list[Draft]()
    for first in range(0, len(timed), len(groups)):
        order = sorted(range(len(groups)), key=lambda g: (ends[g], g))
        for g, (seconds, sequences) in zip(order, timed[first : first + len(groups)], strict=False):
            ends[g] += seconds / float(problem.speeds[list(groups[g])].min())
            drafts.append(Draft(groups[g], tuple(sequences)))
    return drafts
