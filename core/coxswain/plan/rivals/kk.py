"""verl's balance: Karmarkar-Karp on the cost of sequences (verl-project/verl, utils/seqlen_balancing.py).

Faithful: the largest differencing method deals the sequences to the data-parallel groups by cost, and again those of
each group to its micro-batches; the least number of micro-batches is that of the tokens over the token cap. Every
sequence is cut over its whole group, as with verl's sequence parallelism of one degree.

Decided at its best: the cost is the cost model's instead of 24,576 s + s^2; where a micro-batch is over the cap, which
verl runs out of memory with (its issues 7553, 6735), the number of micro-batches grows until each one fits, in steps
of a 64th; groups need not run equally many. Ties go by index.
"""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heapreplace

from coxswain.plan.problem import Draft, Problem
from coxswain.plan.rivals.mesh import mesh


def kk(problem: Problem) -> list[Draft]:
    groups = mesh(problem)
    capacity = len(groups[0]) * problem.capacity
    lengths: list[int] = problem.lengths.tolist()
    costs: list[float] = problem.cost.work_seconds(problem.lengths).tolist()
    drafts = []
    for group, part in zip(groups, differencing(costs, len(groups)), strict=True):
        drafts += [Draft(group, tuple(batch)) for batch in _fitting(lengths, costs, part, capacity)]
    return drafts


def _fitting(lengths: list[int], costs: list[float], part: list[int], capacity: int) -> list[list[int]]:
    """Returns the least number of batches, even in cost, that hold at most `capacity` tokens each."""
    count = -(-sum(lengths[i] for i in part) // capacity)
    while True:
        batches = [[part[k] for k in batch] for batch in differencing([costs[i] for i in part], count)]
        if all(sum(lengths[i] for i in batch) <= capacity for batch in batches):
            return [batch for batch in batches if batch]
        count += 1 + count // 64


Part = tuple[float, list[int]]


def differencing(costs: list[float], count: int) -> list[list[int]]:
    """Deals items to `count` parts by the largest differencing method of Karmarkar and Karp; each part ascends.

    A state holds its parts that are not empty, ascending. Of all states the two with the greatest spread are joined:
    the greatest parts of one with the least of the other.
    """
    states = [(-cost, i, [(cost, [i])]) for i, cost in enumerate(costs)]
    heapify(states)
    while len(states) > 1:
        _, first, one = heappop(states)
        _, second, two = states[0]
        joined = _joined(one, two, count) if len(one) >= len(two) else _joined(two, one, count)
        least = joined[0][0] if len(joined) == count else 0.0
        heapreplace(states, (least - joined[-1][0], min(first, second), joined))
    parts = [sorted(items) for _, items in states[0][2]] if states else []
    return parts + [[] for _ in range(count - len(parts))]


def _joined(one: list[Part], two: list[Part], count: int) -> list[Part]:
    """Joins the greatest parts of the smaller state `two` with those of `one` that are empty, then with its least."""
    falling = two[::-1]
    alone, rest = falling[: count - len(one)], falling[count - len(one) :]
    changed = [(a + b, _union(x, y)) for (a, x), (b, y) in zip(one, rest, strict=False)]
    one[: len(rest)] = []
    for part in alone + changed:
        insort(one, part)
    return one


def _union(one: list[int], two: list[int]) -> list[int]:
    longer, shorter = (one, two) if len(one) >= len(two) else (two, one)
    longer.extend(shorter)
    return longer
