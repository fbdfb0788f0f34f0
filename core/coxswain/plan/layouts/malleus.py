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
from itertools import combinations_with_replacement, islice

from coxswain.plan.layouts.chains import with_layers
from coxswain.plan.layouts.costs import Costs, Group, make_group
from coxswain.plan.layouts.filling import fill_counts, fill_layers
from coxswain.plan.layouts.settle import Draft, Settler

THRESHOLD = 1.2  # slower than this is a straggler
TEMPLATES = 5_000  # assignments of stragglers that are tried: their number grows like set partitions
_ALPHAS = {1: 1.0, 2: 1.90, 4: 3.66, 8: 7.22}  # by full degree / degree: the published fit for the 70B model


def malleus(costs: Costs, current: Draft) -> Draft | None:
    """The plan with the current number of replicas and largest tensor degree; None: none fits."""
    tensor = max(g.degree for c in current.chains for g in c.groups)
    rows = costs.cluster.slowdowns
    groups = [g for node in range(len(rows)) for g in _node(rows[node], node, tensor)]
    best: tuple[float, Draft] | None = None
    for lists in islice(_assignments(groups, len(current.chains), tensor), TEMPLATES):
        found = _filled(costs, lists, tensor)
        if found and (best is None or found[0] < best[0] - 1e-12):
            best = found
    return best[1] if best else None


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
    return round(sum(rates), 9), -len(rates)


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
    for rest in combinations_with_replacement(range(most, most - 4, -1), replicas):
        if sum(rest) == groups and min(rest) > 0 and len(set(rest)) > 1:
            yield rest


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


def _filled(costs: Costs, lists: Sequence[Sequence[Group]], tensor: int) -> tuple[float, Draft] | None:
    """Layers and micro-batches by the published model, and what the step takes by ours."""
    replicas, layers, pace = len(lists), [], []
    for groups in lists:
        rates = [_time(g, tensor) for g in groups]
        most = [costs.most_layers(g.degree, s == 0, len(groups) - s, replicas) for s, g in enumerate(groups)]
        found = fill_layers(costs.model.layers, rates, [0.0] * len(rates), most) if groups else None
        if found is None:
            return None
        layers.append(found)
        pace.append(max(rate * n for rate, n in zip(rates, found, strict=True)))
    counts = fill_counts(costs.cluster.micro_batches, pace, [0.0] * replicas)
    if counts is None:
        return None
    chains = tuple(with_layers(costs, g, n, replicas) for g, n in zip(lists, layers, strict=True))
    settler = Settler(costs)
    seconds = max(settler.seconds(c, m) for c, m in zip(chains, counts, strict=True))
    return max(p * m for p, m in zip(pace, counts, strict=True)), Draft(chains, tuple(counts), seconds)
