"""Proposes how many replicas of which kinds: the dynamic program of Hydraulis (arXiv 2412.07894), as its code has it.

Lengths are cut into intervals; each interval gets `d` replicas of one kind `k`, and the last one to end decides:

    t[n][s] = min over k, s' < s, d of max(t[n - d * devices(k)][s'], cost_k((s', s]) / d)

Here the question is turned round: for a time T, the fewest devices that end every interval within T are a shortest path
over the borders of intervals. They fall as T grows, so a search for T finds the same optimum without a table over n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coxswain.plan.strategy.costs import KindCost
from coxswain.plan.strategy.values import Kind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
BINS = 32
NEVER = 1e18  # seconds of what does not fit
_HALVINGS = 80
_NO_DEVICES = int(np.iinfo(np.int32).max)


class Histogram(NamedTuple):
    """Bins of lengths, ascending, of a mean step."""

    longest: Floats  # of each bin, tokens
    counts: Floats
    tokens: Floats  # sums over the bin
    squares: Floats


def histogram(steps: Sequence[Ints], bins: int = BINS) -> Histogram:
    """At most so many bins, equal in tokens as far as lengths allow; the longest sequences are bins of their own."""
    lengths = np.sort(np.concatenate(steps)).astype(np.float64)
    share = np.cumsum(lengths) / lengths.sum() * bins
    number = np.minimum(np.ceil(share), bins).astype(np.int64)
    number = number[np.searchsorted(lengths, lengths, side="right") - 1]  # equal lengths are in one bin
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    ends = np.append(starts[1:], lengths.size) - 1
    sums = (np.add.reduceat(x, starts) / len(steps) for x in (np.ones_like(lengths), lengths, lengths**2))
    return Histogram(lengths[ends], *sums)


class Pool(NamedTuple):
    """`replicas` of one kind, and the bins [start, stop) of lengths that they are proposed for."""

    kind: int
    start: int
    stop: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Tables:
    """What the search reads, by kind (axis 0) and bin (axis 1)."""

    devices: Ints  # of a replica
    most: Ints  # replicas of a kind that the devices make
    work: Floats  # seconds of the bins before a border on one replica
    alone: Floats  # seconds of a bin's longest sequence on at most so many replicas (axis 2, from 1 to the kind's most)
    drain: Floats
    after: Floats

    def seconds(self, kind: Ints, start: Ints, stop: Ints, replicas: Ints) -> Floats:
        """Seconds of an interval of bins on so many replicas of a kind."""
        alone = self.alone[kind, stop - 1, replicas - 1]
        shared = (self.work[kind, stop] - self.work[kind, start]) / replicas
        found: Floats = np.maximum(shared, alone) + self.drain[kind] * alone + self.after[kind]
        return found


def tables(
    kinds: Sequence[Kind],
    costs: Sequence[KindCost],
    lengths: Histogram,
    most: Sequence[int],
    capacities: Sequence[int],
    *,
    max_degree: int,
    node: int,
) -> Tables:
    """`most`: replicas of each kind that the devices make; `capacities`: tokens of a task; `node`: devices of a node."""
    wide = max(most)
    alone = np.full((len(kinds), lengths.longest.size, wide), NEVER)
    for k, (kind, cost) in enumerate(zip(kinds, costs, strict=True)):
        alone[k, :, : most[k]] = _alone(cost, lengths.longest, most[k], capacities[k], max_degree, node // kind.devices)
    return Tables(
        np.array([kind.devices for kind in kinds]),
        np.array(most),
        np.stack([_work(cost, lengths, each) for cost, each in zip(costs, capacities, strict=True)]),
        alone,
        np.array([float(cost.drain) for cost in costs]),
        np.array([cost.after for cost in costs]),
    )


def _work(cost: KindCost, lengths: Histogram, capacity: int) -> Floats:
    """Seconds on one replica of the bins before each border; every `capacity` tokens are a task."""
    c = cost.tasks
    typical = np.sqrt(lengths.squares / lengths.counts)  # has the bin's attention, where that grows with the square
    attention = lengths.counts * (c.work_seconds(typical) - c.linear * typical)
    own = (c.linear + c.task / capacity) * lengths.tokens + attention
    return np.concatenate([[0.0], np.cumsum(own)])


def _alone(cost: KindCost, longest: Floats, most: int, capacity: int, max_degree: int, node: int) -> Floats:
    """Seconds of each length on at most 1, 2, ... `most` replicas: the best degree that holds it. `node`: replicas of a node."""
    degree = np.arange(1, most + 1, dtype=np.float64)
    s = longest[:, None]
    inside = cost.tasks.ring_seconds(s, degree, True)
    seconds = np.where(degree <= max(1, node), inside, cost.tasks.ring_seconds(s, degree, False))
    seconds[:, 0] = cost.tasks.task + cost.tasks.work_seconds(longest)
    seconds[(degree < np.ceil(s / capacity)) | (degree > max_degree)] = NEVER
    found: Floats = np.minimum.accumulate(seconds, axis=1)
    return found


def propose(table: Tables, devices: int) -> list[Pool]:
    """The pools that end a mean step earliest on so many devices; none where no kind holds the longest sequence."""
    low, high, best = 0.0, NEVER, list[Pool]()
    limit = _slowest(table)
    for _ in range(_HALVINGS):
        pools = _within(table, devices, limit)
        if pools:
            best, high = pools, float(_seconds(table, pools).max())
        else:
            low = limit
        if not best or high - low <= 1e-9 * high:
            break
        limit = (low + high) / 2
    return best


def _seconds(table: Tables, pools: list[Pool]) -> Floats:
    return table.seconds(*np.array(pools, dtype=np.int64).T)


def _slowest(table: Tables) -> float:
    """A time within which some kind ends all bins alone, if any can."""
    kinds, bins = np.arange(table.devices.size), table.alone.shape[1]
    alone = table.seconds(kinds, np.zeros_like(kinds), np.full_like(kinds, bins), table.most)
    return float(alone.min())


def _within(table: Tables, devices: int, limit: float) -> list[Pool]:
    """Pools that end within the limit on the fewest devices; empty where they are too few."""
    if limit >= NEVER:
        return []
    replicas, need = least_replicas(table, limit)
    kind = need.argmin(axis=0)
    cheapest = need.min(axis=0)
    bins = cheapest.shape[0] - 1
    total, before = np.full(bins + 1, _NO_DEVICES), np.zeros(bins + 1, dtype=np.int64)
    total[0] = 0
    for stop in range(1, bins + 1):
        sums = np.minimum(total[:stop] + cheapest[:stop, stop], _NO_DEVICES)
        before[stop], total[stop] = sums.argmin(), sums.min()
    return _trace(before, kind, replicas) if total[-1] <= devices else []


def _trace(before: Ints, kind: Ints, replicas: Ints) -> list[Pool]:
    pools, stop = list[Pool](), before.size - 1
    while stop:
        start = int(before[stop])
        k = int(kind[start, stop])
        pools.append(Pool(k, start, stop, int(replicas[k, start, stop])))
        stop = start
    return pools[::-1]


def least_replicas(table: Tables, limit: float) -> tuple[Ints, Ints]:
    """Of each (kind, start, stop) the fewest replicas that end within the limit, and their devices."""
    bins = table.alone.shape[1]
    kind, start, stop = np.ogrid[: table.devices.size, : bins + 1, : bins + 1]
    usable = np.broadcast_to(start < stop, (table.devices.size, bins + 1, bins + 1))
    kind, start, stop = (np.broadcast_to(x, usable.shape)[usable] for x in (kind, start, stop))
    low, high = np.ones_like(kind), table.most[kind]
    ends = table.seconds(kind, start, stop, high) <= limit
    while (low < high).any():
        middle = (low + high) // 2
        enough = table.seconds(kind, start, stop, middle) <= limit
        low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
    replicas, need = np.zeros(usable.shape, dtype=np.int64), np.full(usable.shape, _NO_DEVICES)
    replicas[usable], need[usable] = high, np.where(ends, high * table.devices[kind], _NO_DEVICES)
    return replicas, need
