"""One replica: an ordered chain of tensor groups, its layers, and how long it takes for so many micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum

from coxswain.plan.layouts.costs import Costs, Group
from coxswain.plan.layouts.filling import fill_layers


@dataclass(frozen=True, slots=True)
class Chain:
    """`times`: seconds of each stage for one micro-batch. m of them take about m * pace + start seconds."""

    groups: tuple[Group, ...]
    layers: tuple[int, ...]
    times: tuple[float, ...]
    hops: tuple[float, ...]
    sync: float
    pace: float
    start: float

    def estimate(self, count: int) -> float:
        return count * self.pace + self.start

    def least(self, count: int) -> float:
        """No less: each stage does all its work after the first forward of those before it, and before their last backward."""
        found = before = 0.0
        for time, hop in zip(self.times, (*self.hops, 0.0), strict=True):
            found = max(found, before + count * time)
            before += time + 2 * hop
        return found + self.sync


def chain(costs: Costs, groups: Sequence[Group], replicas: int) -> Chain | None:
    """The chain with its layers levelled; None: the model does not fit on it."""
    degrees, depth = [g.degree for g in groups], len(groups)
    each = [costs.layer_seconds(g.degree, g.slowdown) for g in groups]
    extra = [0.0] * (depth - 1) + [costs.loss_seconds(groups[-1])]
    most = [costs.most_layers(d, s == 0, depth - s, replicas) for s, d in enumerate(degrees)]
    layers = fill_layers(costs.model.layers, each, extra, most)
    return None if layers is None else with_layers(costs, groups, layers, replicas)


def with_layers(costs: Costs, groups: Sequence[Group], layers: Sequence[int], replicas: int) -> Chain:
    """The chain with these layers, whether or not they fit."""
    last = len(groups) - 1
    times = [costs.layer_seconds(g.degree, g.slowdown) * n for g, n in zip(groups, layers, strict=True)]
    times[last] += costs.loss_seconds(groups[last])
    hops = tuple(costs.hop_seconds(a, b) for a, b in pairwise(groups))
    sync = max(
        [
            costs.sync_seconds(g, n, s == 0, s == last, replicas)
            for s, (g, n) in enumerate(zip(groups, layers, strict=True))
        ]
    )
    pace = max(times)
    return Chain(
        tuple(groups), tuple(layers), tuple(times), hops, sync, pace, fsum(times) - pace + 2 * fsum(hops) + sync
    )


def chain_seconds(chain: Chain, count: int, forward: float) -> float:
    """The chain's part of a step: 1F1B of `count` micro-batches by event simulation, then its share of the exchange."""
    return pipeline_seconds(chain.times, chain.hops, count, forward) + chain.sync


def pipeline_seconds(times: Sequence[float], hops: Sequence[float], count: int, forward: float) -> float:
    """When the last stage ends: stage s of p runs min(p - s, count) forwards, then one backward and one forward in turn.

    `forward`: its part of a stage's time. A message takes hops[s] between stages s and s + 1, either way.
    """
    depth = len(times)
    if depth == 1:
        return count * times[0]
    free = [0.0] * depth  # when each stage has ended its last operation
    outputs: list[list[float]] = [[] for _ in times]  # when each forward ended
    before = (0.0, *hops)
    fore = [(s, times[s] * forward, before[s]) for s in range(depth)]
    back = [(s, times[s] * (1 - forward), before[s]) for s in reversed(range(depth))]
    for k in range(count):
        arrived: list[float] = []
        for s, each, hop in fore:
            now, done, stop = free[s], outputs[s], depth - s + k
            for i in range(len(done), stop if stop < count else count):  # min() takes twice as long
                if s and arrived[i] + hop > now:
                    now = arrived[i] + hop
                now += each
                done.append(now)
            free[s], arrived = now, done
        ready = 0.0
        for s, each, hop in back:
            now = free[s]
            free[s] = now = (ready if ready > now else now) + each
            ready = now + hop
    return max(free)
