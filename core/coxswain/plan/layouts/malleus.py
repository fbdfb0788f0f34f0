"""Malleus (Li et al., arXiv 2410.13333) as its authors' public code plans: `python/hetu/engine/strategy.py` of PKU-DAIR/Hetu.

1. Each node's devices are ordered: healthy ones, then stragglers by rate. All but the last block of `tensor` devices form
   whole groups. The last block is cut into a chain of groups of sizes that are powers of two, with the run of stragglers
   slid through the order; the chain with the highest sum of 1 / (alpha x slowest rate) stays. Others are suspended.
2. The number of replicas stays. Their numbers of stages are at most one from the mean.
3. Groups with stragglers, or too small, go to replicas in every way; whole healthy groups fill the rest. Inside a replica
   the slowest stand first.
4. Layers: least maximum of rate x layers, within memory. Micro-batches: least maximum of bottleneck x micro-batches.
   The step is thought to take that: no bubble, loss, message or exchange is counted.

Rates below 1.2 count as healthy. What comes out is judged by our simulation, with true rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import fsum

from coxswain.plan.layouts.chains import Chain, with_layers
from coxswain.plan.layouts.costs import Costs, Group, make_group
from coxswain.plan.layouts.filling import fill_counts, fill_layers
from coxswain.plan.layouts.settle import Draft, Settler

THRESHOLD = 1.2  # slower than this is a straggler
TEMPLATES = 15_000  # replicas of the assignments of stragglers that are tried: their number grows like set partitions
_ALPHAS = {1: 1.0, 2: 1.90, 4: 3.66, 8: 7.22}  # by full degree / degree: the published fit for the 70B model


def malleus(costs: Costs, current: Draft) -> Draft | None:
    """The plan with the current number of replicas and largest tensor degree; None: none fits."""
    tensor = max(g.degree for c in current.chains for g in c.groups)
    rows = costs.cluster.slowdowns
    groups = [g for node in range(len(rows)) for g in _node(rows[node], node, tensor)]
    filler, replicas, best = _Filler(costs, tensor, len(current.chains)), len(current.chains), None
    for lists in islice(_assignments(groups, replicas, tensor), max(1, TEMPLATES // replicas)):
        found = filler.filled(lists)
        if found and (best is None or found.seconds < best.seconds - 1e-12):
            best = found
    return best and _judged(costs, best)


def _rate(slowdown: float) -> float:
    return slowdown if slowdown >= THRESHOLD else 1.0


def _alpha(degree: int, tensor: int) -> float:
    return _ALPHAS.get(tensor // degree, tensor / degree)


def _node(row: Sequence[float], node: int, tensor: int) -> Iterator[Group]:
    """Whole groups, and the best chain of the last block."""
    alive = [d for d in range(len(row)) if row[d] < float("inf")]
    order = sorted(alive, key=lambda d: (_rate(row[d]), d))
    whole = max(0, (len(order) - 1) // tensor)
    runs = [order[i * tensor : (i + 1) * tensor] for i in range(whole)]
    block = order[whole * tensor :]
    if len(block) == tensor and all(_rate(row[d]) == 1 for d in block):
        runs.append(block)
    elif block:
        runs += max(_chains(block, row, tensor), key=lambda chain: _worth(chain, row, tensor))
    yield from (make_group(node, run, max(row[d] for d in run)) for run in runs)


def _chains(block: Sequence[int], row: Sequence[float], tensor: int) -> Iterator[list[list[int]]]:
    """Every chain of sizes, with the stragglers at every place of the order; devices behind the chain are left out."""
    healthy = [d for d in block if _rate(row[d]) == 1]
    slow = [d for d in block if _rate(row[d]) > 1]
    for place in range(len(healthy) + 1):
        order = [*healthy[:place], *slow, *healthy[place:]]
        for sizes in _sizes(len(order), tensor):
            starts = [sum(sizes[:i]) for i in range(len(sizes))]
            yield [order[a : a + n] for a, n in zip(starts, sizes, strict=True)]


def _sizes(count: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Powers of two, each once, descending, with a sum of at most `count`."""
    size = largest
    while size:
        if size <= count:
            yield (size,)
            yield from ((size, *rest) for rest in _sizes(count - size, size // 2))
        size //= 2


def _worth(chain: Iterable[list[int]], row: Sequence[float], tensor: int) -> tuple[float, int]:
    rates = [1 / (_alpha(len(run), tensor) * max(_rate(row[d]) for d in run)) for run in chain]
    return round(fsum(rates), 9), -len(rates)


def _assignments(groups: Sequence[Group], replicas: int, tensor: int) -> Iterator[list[list[Group]]]:
    """Replicas with numbers of stages near the mean; the odd groups in every way, whole ones behind them."""
    odd = sorted((g for g in groups if g.degree < tensor or _rate(g.slowdown) > 1), key=lambda g: _time(g, tensor))
    whole = [g for g in groups if g.degree == tensor and _rate(g.slowdown) == 1]
    for stages in _stages(len(groups), replicas, len(groups) // replicas + 1 + (len(groups) % replicas > 0)):
        for lists in _partitions(odd[::-1], [[] for _ in stages], stages):
            rest, found = iter(whole), []
            for mine, count in zip(lists, stages, strict=True):
                found.append([*mine, *islice(rest, count - len(mine))])
            yield found


def _stages(groups: int, replicas: int, most: int) -> Iterator[tuple[int, ...]]:
    """Descending numbers of stages, each at most one from the mean; the mean itself where it is whole."""
    if groups % replicas == 0:
        yield (groups // replicas,) * replicas
    a, b, c, d = range(most, most - 4, -1)
    for first in range(replicas, -1, -1):
        for second in range(replicas - first, -1, -1):
            rest = replicas - first - second
            third = groups - first * a - second * b - rest * d  # so many of c, and the others of d, have the sum
            found = (*(a,) * first, *(b,) * second, *(c,) * third, *(d,) * (rest - third))
            if 0 <= third <= rest and min(found) > 0 and len(set(found)) > 1:
                yield found


def _partitions(odd: Sequence[Group], lists: list[list[Group]], stages: Sequence[int]) -> Iterator[list[list[Group]]]:
    if not odd:
        yield lists
        return
    tried = set()
    for r, mine in enumerate(lists):
        key = tuple((g.degree, g.slowdown) for g in mine), stages[r]
        if len(mine) < stages[r] and key not in tried:
            tried.add(key)
            yield from _partitions(odd[1:], [*lists[:r], [*mine, odd[0]], *lists[r + 1 :]], stages)


def _time(group: Group, tensor: int) -> float:
    return _alpha(group.degree, tensor) * _rate(group.slowdown)


class _Filler:
    """Layers and micro-batches by the published model; layers of replicas with equal groups are dealt once."""

    def __init__(self, costs: Costs, tensor: int, replicas: int) -> None:
        self._costs, self._tensor, self._replicas = costs, tensor, replicas
        self._found: dict[tuple[tuple[int, float], ...], tuple[tuple[int, ...], float] | None] = {}

    def filled(self, lists: Sequence[Sequence[Group]]) -> Draft | None:
        """`seconds`: what the published model takes the step for, in units of its own."""
        found = [self._of(tuple((g.degree, _time(g, self._tensor)) for g in groups)) for groups in lists]
        dealt = [f for f in found if f]
        if len(dealt) < len(found):
            return None
        pace = [p for _, p in dealt]
        counts = fill_counts(self._costs.cluster.micro_batches, pace, [0.0] * len(pace))
        if counts is None:
            return None
        chains = tuple(
            Chain(tuple(g), layers, (), (), 0.0, p, 0.0) for g, (layers, p) in zip(lists, dealt, strict=True)
        )
        return Draft(chains, tuple(counts), max(p * m for p, m in zip(pace, counts, strict=True)))

    def _of(self, groups: tuple[tuple[int, float], ...]) -> tuple[tuple[int, ...], float] | None:
        """Layers of a replica by degree and rate of its groups, and the bottleneck."""
        if groups not in self._found:
            rates, depth = [rate for _, rate in groups], len(groups)
            most = [self._costs.most_layers(d, s == 0, depth - s, self._replicas) for s, (d, _) in enumerate(groups)]
            layers = fill_layers(self._costs.model.layers, rates, [0.0] * depth, most) if groups else None
            pace = max((rate * n for rate, n in zip(rates, layers or (), strict=False)), default=0.0)
            self._found[groups] = (tuple(layers), pace) if layers else None
        return self._found[groups]


def _judged(costs: Costs, draft: Draft) -> Draft:
    """With what the step takes by our simulation."""
    settler = Settler(costs)
    chains = tuple(with_layers(costs, c.groups, c.layers, len(draft.chains)) for c in draft.chains)
    return Draft(chains, draft.counts, max(settler.seconds(c, m) for c, m in zip(chains, draft.counts, strict=True)))
