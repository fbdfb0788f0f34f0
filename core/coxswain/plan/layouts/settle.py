"""Ends a search on true times: micro-batches by event simulation, then orders of stages and single layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coxswain.plan.layouts.chains import Chain, chain, chain_seconds, with_layers
from coxswain.plan.layouts.costs import Costs
from coxswain.plan.layouts.filling import fill_counts

POLISHED = 24  # chains of a draft in each round
OPERATIONS = 1_000_000  # of stages, simulated at most to polish one draft; some 0.3 s
NEIGHBOUR = 10  # operations that it costs to make a neighbour, for each of its stages
SHORT = 3  # stages: in shorter pipelines layers are shifted after each exchange too


@dataclass(frozen=True, slots=True)
class Draft:
    """Chains and their micro-batches. `seconds`: of a step, by event simulation."""

    chains: tuple[Chain, ...]
    counts: tuple[int, ...]
    seconds: float


class Settler:
    """Simulates each chain with each number of micro-batches once, whichever its devices are."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._seconds: dict[tuple[tuple[float, ...], tuple[float, ...], float, int], float] = {}
        self._left = OPERATIONS
        self._climbs: dict[tuple[Chain, int, int], Chain] = {}

    def polish(self, best: Draft, rounds: int = 3) -> Draft:
        """Climbs with the chains that end last, and deals micro-batches again, in turn."""
        self._left = OPERATIONS
        for _ in range(rounds):
            again = self.deal(self._polished(best))
            if again is None or again.seconds >= best.seconds - 1e-12:
                break
            best = again
        return best

    def _polished(self, draft: Draft) -> list[Chain]:
        chains, replicas = list(draft.chains), range(len(draft.chains))
        ends = [self.seconds(c, m) for c, m in zip(chains, draft.counts, strict=True)]
        for i in sorted(replicas, key=lambda i: (-ends[i], i))[:POLISHED]:
            chains[i] = self._climbed(chains[i], draft.counts[i], len(replicas))
        return chains

    def deal(self, chains: Sequence[Chain]) -> Draft | None:
        """Micro-batches by the estimates, then levelled by the true times."""
        pace, starts = [c.pace for c in chains], [c.start for c in chains]
        counts = fill_counts(self._costs.cluster.micro_batches, pace, starts)
        return None if counts is None else self._levelled(chains, counts)

    def _levelled(self, chains: Sequence[Chain], counts: list[int]) -> Draft:
        """Moves a micro-batch from the chain that ends last to the one that would end first with it, while that helps."""
        replicas = range(len(counts))
        ends = [self.seconds(c, m) for c, m in zip(chains, counts, strict=True)]
        while True:
            late = max(replicas, key=ends.__getitem__)
            early = min(replicas, key=lambda i: ends[i] + chains[i].pace)
            if late == early or counts[late] == 1:
                return Draft(tuple(chains), tuple(counts), ends[late])
            end = self.seconds(chains[early], counts[early] + 1)
            if end >= ends[late] - 1e-12:
                return Draft(tuple(chains), tuple(counts), ends[late])
            counts[early], ends[early] = counts[early] + 1, end
            counts[late] -= 1
            ends[late] = self.seconds(chains[late], counts[late])

    def seconds(self, chain: Chain, count: int) -> float:
        key = chain.times, chain.hops, chain.sync, count
        if key not in self._seconds:
            self._left -= count * len(chain.times)
            self._seconds[key] = chain_seconds(chain, count, self._costs.forward)
        return self._seconds[key]

    def _climbed(self, chain: Chain, count: int, replicas: int) -> Chain:
        key = chain, count, replicas
        if key not in self._climbs:
            self._climbs[key] = self._climb(chain, count, replicas)
        return self._climbs[key]

    def _climb(self, best: Chain, count: int, replicas: int) -> Chain:
        """Takes the first neighbour that is faster, until none is."""
        seconds = self.seconds(best, count)
        while True:
            for other in neighbours(self._costs, best, replicas):
                self._left -= NEIGHBOUR * len(best.times)
                if self._left < 0:
                    return best
                if other.least(count) < seconds - 1e-9 and self.seconds(other, count) < seconds - 1e-9:
                    best, seconds = other, self.seconds(other, count)
                    break
            else:
                return best


def neighbours(costs: Costs, old: Chain, replicas: int) -> Iterator[Chain]:
    """Two stages exchanged, with layers levelled again; one layer from one stage to another."""
    depth = len(old.groups)
    for a in range(depth):
        for b in range(a + 1, depth):
            if old.groups[a] != old.groups[b]:
                groups = list(old.groups)
                groups[a], groups[b] = groups[b], groups[a]
                if other := chain(costs, groups, replicas):
                    yield other
                    yield from _shifted(costs, other, replicas) if depth <= SHORT else ()
    yield from _shifted(costs, old, replicas)


def _shifted(costs: Costs, old: Chain, replicas: int) -> Iterator[Chain]:
    """One layer from one stage to another that has room for it."""
    depth = len(old.groups)
    for a in range(depth):
        for b in range(depth):
            layers = list(old.layers)
            layers[a], layers[b] = layers[a] - 1, layers[b] + 1
            most = costs.most_layers(old.groups[b].degree, b == 0, depth - b, replicas)
            if a != b and layers[a] and layers[b] <= most:
                yield with_layers(costs, old.groups, layers, replicas)
