"""The best layout of a small case, by trying all of them: every cut, order of stages, split of layers and micro-batches.

Devices of one node and slowdown are interchangeable, so a set of devices is a count of each kind. The time of a replica
depends on the number of replicas and on nothing else of the others, so replicas are tried one by one and then combined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, combinations_with_replacement, pairwise, permutations, product
from math import comb

from coxswain.plan.layouts.chains import Chain, chain_seconds, with_layers
from coxswain.plan.layouts.costs import Costs, Group, make_group
from coxswain.plan.layouts.settle import Draft

_DEVICES, _TRIES = 5, 10_000  # of a small case: half a second of the processor at most

Kind = tuple[int, float]  # node and slowdown
Counts = tuple[int, ...]  # devices of each kind
Best = dict[int, tuple[float, Chain]]  # by number of micro-batches: seconds, and the chain that takes them


def exhaustive(costs: Costs) -> Draft | None:
    """For up to six devices or so; None: the model fits on no layout."""
    found = [Enumeration(costs, replicas).best() for replicas in range(1, costs.cluster.devices + 1)]
    return min((d for d in found if d), key=lambda d: d.seconds, default=None)


def is_small(costs: Costs) -> bool:
    """Whether all layouts are tried within a second: by orders of devices, splits of layers and numbers of micro-batches."""
    kinds = [(n, x) for n, row in enumerate(costs.cluster.slowdowns) for x in row if x < float("inf")]
    if len(kinds) > _DEVICES:
        return False
    depths = range(1, len(kinds) + 1)
    pipelines = sum(len(set(permutations(kinds, d))) * comb(costs.model.layers - 1, d - 1) for d in depths)
    return len(kinds) * costs.cluster.micro_batches * pipelines <= _TRIES


class Enumeration:
    """All layouts with one number of replicas."""

    def __init__(self, costs: Costs, replicas: int) -> None:
        self._costs, self._replicas = costs, replicas
        alive = [(n, x) for n, row in enumerate(costs.cluster.slowdowns) for x in row if x < float("inf")]
        counted = sorted(Counter(alive).items())
        self._kinds = [kind for kind, _ in counted]
        self._all = tuple(count for _, count in counted)
        self._chains: dict[Counts, Best] = {}
        self._known: dict[tuple[Counts, int, int], tuple[float, tuple[tuple[Counts, int], ...]]] = {}

    def best(self) -> Draft | None:
        batches = self._costs.cluster.micro_batches
        seconds, parts = self._combined(self._all, self._replicas, batches)
        if seconds == float("inf"):
            return None
        chains, counts = tuple(self._best(used)[m][1] for used, m in parts), tuple(m for _, m in parts)
        return Draft(self._named(chains), counts, seconds)

    def _combined(self, left: Counts, replicas: int, batches: int) -> tuple[float, tuple[tuple[Counts, int], ...]]:
        """The earliest end of so many replicas with these devices and micro-batches, and what each of them has."""
        if replicas == 0:
            return (float("inf") if batches else 0.0), ()
        key = left, replicas, batches
        if key not in self._known:
            found: tuple[float, tuple[tuple[Counts, int], ...]] = float("inf"), ()
            for used in product(*(range(n + 1) for n in left)):
                rest = tuple(a - b for a, b in zip(left, used, strict=True))
                for m, (seconds, _) in self._best(used).items():
                    if m <= batches and seconds < found[0]:
                        others, parts = self._combined(rest, replicas - 1, batches - m)
                        if max(seconds, others) < found[0]:
                            found = max(seconds, others), ((used, m), *parts)
            self._known[key] = found
        return self._known[key]

    def _best(self, used: Counts) -> Best:
        if used not in self._chains:
            self._chains[used] = self._tried(used)
        return self._chains[used]

    def _tried(self, used: Counts) -> Best:
        found: Best = {}
        for groups in self._pipelines(used):
            for layers in self._splits(groups):
                chain = with_layers(self._costs, groups, layers, self._replicas)
                for m in range(1, self._costs.cluster.micro_batches + 1):
                    known = found[m][0] if m in found else float("inf")
                    if chain.least(m) < known:
                        seconds = chain_seconds(chain, m, self._costs.forward)
                        if seconds < known:
                            found[m] = seconds, chain
        return found

    def _pipelines(self, used: Counts) -> Iterator[tuple[Group, ...]]:
        """Every order of tensor groups that has exactly these devices."""
        if not any(used):
            yield ()
            return
        for part in self._groups(used):
            group = self._group(part)
            for rest in self._pipelines(tuple(a - b for a, b in zip(used, part, strict=True))):
                yield (group, *rest)

    def _groups(self, used: Counts) -> Iterator[Counts]:
        for node in sorted({n for n, _ in self._kinds}):
            mine = [i for i, (n, _) in enumerate(self._kinds) if n == node]
            for degree in self._costs.degrees:
                for kinds in combinations_with_replacement(mine, degree):
                    taken = Counter(kinds)
                    if all(taken[i] <= used[i] for i in taken):
                        yield tuple(taken[i] for i in range(len(used)))

    def _group(self, part: Counts) -> Group:
        """Its devices are kinds until the layout is found."""
        kinds = tuple(i for i, n in enumerate(part) for _ in range(n))
        return make_group(self._kinds[kinds[0]][0], kinds, max(self._kinds[i][1] for i in kinds))

    def _splits(self, groups: Sequence[Group]) -> Iterator[tuple[int, ...]]:
        """Every split of the layers that fits."""
        depth, layers = len(groups), self._costs.model.layers
        most = [self._costs.most_layers(g.degree, s == 0, depth - s, self._replicas) for s, g in enumerate(groups)]
        for cuts in combinations(range(1, layers), depth - 1) if groups else ():
            found = tuple(b - a for a, b in pairwise((0, *cuts, layers)))
            if all(n <= m for n, m in zip(found, most, strict=True)):
                yield found

    def _named(self, chains: tuple[Chain, ...]) -> tuple[Chain, ...]:
        """The chains with numbers of devices in place of kinds."""
        free: dict[int, list[int]] = {
            i: [d for d, x in enumerate(self._costs.cluster.slowdowns[node]) if x == slowdown]
            for i, (node, slowdown) in enumerate(self._kinds)
        }
        return tuple(
            replace(
                c, groups=tuple(make_group(g.node, [free[i].pop(0) for i in g.devices], g.slowdown) for g in c.groups)
            )
            for c in chains
        )
