"""The best layout of a small case, by trying all of them: every cut, order of stages, split of layers and micro-batches.

Devices of one node and slowdown are interchangeable, so a set of devices is a count of each kind. The time of a replica
depends on the number of replicas and on nothing else of the others, so replicas are tried one by one and then combined.

Where a layout is known already, only what ends sooner is tried: the devices that a replica leaves to the others do so many
micro-batches at most in that time, and it must do the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, product
from math import fsum

from coxswain.plan.layouts.chains import Chain, chain_seconds, with_layers
from coxswain.plan.layouts.costs import Costs, Group, make_group
from coxswain.plan.layouts.settle import Draft

_DEVICES, _BATCHES = 6, 96  # of a small case; micro-batches times devices: with more of them the search finds the best
_TRIES = 20_000  # chains and simulations of them: some half a second of the processor, a whole one for six devices

Kind = tuple[int, float]  # node and slowdown
Counts = tuple[int, ...]  # devices of each kind
Best = dict[int, tuple[float, Chain]]  # by number of micro-batches: seconds, and the chain that takes them


def exhaustive(costs: Costs, below: float = float("inf"), tries: float = float("inf")) -> Draft | None:
    """The best layout that takes less than `below` seconds; None: there is none. With fewer tries than it takes, one of those
    that were tried."""
    best: Draft | None = None
    for replicas in range(1, costs.cluster.devices + 1):
        found = Enumeration(costs, replicas, below, tries)
        if better := found.best():
            best, below = better, better.seconds
        tries = found.left
    return best


def is_small(costs: Costs) -> bool:
    """Whether few enough devices share few enough micro-batches for all layouts to be tried."""
    alive = sum(x < float("inf") for row in costs.cluster.slowdowns for x in row)
    return alive <= _DEVICES and alive * costs.cluster.micro_batches <= _BATCHES


def better_than(costs: Costs, known: float) -> Draft | None:
    """Of a small case a layout that takes less than `known` seconds, the best one where the tries suffice."""
    return exhaustive(costs, known, _TRIES) if is_small(costs) else None


class Enumeration:
    """All layouts with one number of replicas that take less than `below` seconds. `left`: tries."""

    def __init__(self, costs: Costs, replicas: int, below: float, tries: float) -> None:
        self._costs, self._replicas, self._below, self.left = costs, replicas, below, tries
        alive = [(n, x) for n, row in enumerate(costs.cluster.slowdowns) for x in row if x < float("inf")]
        counted = sorted(Counter(alive).items())
        self._kinds = [kind for kind, _ in counted]
        self._all = tuple(count for _, count in counted)
        self._work = costs.model.layers * costs.layer_seconds(1, 1.0) + costs.loss_seconds(make_group(0, (0,), 1.0))
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
            for used, rest in _first_parts(left) if self._most(left) >= batches else ():
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
        counts = self._counts(used)
        for groups in self._pipelines(used) if counts else ():
            for layers in self._splits(groups, counts.start):
                if self.left <= 0:
                    return found
                self.left -= 1
                self._try(with_layers(self._costs, groups, layers, self._replicas), counts, found)
        return found

    def _counts(self, used: Counts) -> range:
        """Micro-batches that a replica of these devices must do and may do."""
        batches, rest = self._costs.cluster.micro_batches, tuple(a - b for a, b in zip(self._all, used, strict=True))
        return range(max(1, batches - self._most(rest)), min(batches - self._replicas + 1, self._most(used)) + 1)

    def _most(self, devices: Counts) -> int:
        """Micro-batches that these devices do at most, however they share them."""
        batches = self._costs.cluster.micro_batches
        rate = fsum(n / x for n, (_, x) in zip(devices, self._kinds, strict=True)) / self._work
        return int(min(batches, rate * self._below + 1e-9)) if rate else 0

    def _try(self, chain: Chain, counts: range, found: Best) -> None:
        for m in counts:
            known = found[m][0] if m in found else self._below
            if chain.least(m) < known:
                self.left -= 1
                seconds = chain_seconds(chain, m, self._costs.forward)
                if seconds < known:
                    found[m] = seconds, chain

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

    def _splits(self, groups: Sequence[Group], count: int) -> Iterator[tuple[int, ...]]:
        """Every split of the layers that fits, and with which no stage does so many micro-batches too late."""
        depth = len(groups)
        each = [self._costs.layer_seconds(g.degree, g.slowdown) for g in groups]
        most = [self._costs.most_layers(g.degree, s == 0, depth - s, self._replicas) for s, g in enumerate(groups)]

        def split(stage: int, left: int, before: float) -> Iterator[tuple[int, ...]]:
            if stage == depth - 1:
                if left <= most[stage]:
                    yield (left,)
                return
            for n in range(1, min(most[stage], left - (depth - 1 - stage)) + 1):
                if before + count * n * each[stage] >= self._below:
                    return
                for rest in split(stage + 1, left - n, before + n * each[stage]):
                    yield (n, *rest)

        return split(0, self._costs.model.layers, 0.0) if groups else iter(())

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


def _first_parts(left: Counts) -> Iterator[tuple[Counts, Counts]]:
    """What one replica may have of these devices, and what is left for the others: those have none of an earlier kind than it."""
    for used in product(*(range(n + 1) for n in left)):
        first = next((i for i, n in enumerate(used) if n), 0)
        yield used, tuple(a - b if i >= first else 0 for i, (a, b) in enumerate(zip(left, used, strict=True)))
