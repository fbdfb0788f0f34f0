"""Cuts each node's devices into tensor groups: runs of devices in order of speed, so that a slow one slows few others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, product
from math import prod

from coxswain.plan.layouts.costs import Group, make_group

Cut = tuple[tuple[int, ...], ...]  # places in the order of slowdowns, by group

# What a group costs beside its devices, as a part of a whole group: each makes a pipeline one stage longer. From next to
# nothing, where the sum of speeds alone counts, to so much that slow and single devices are rather left out.
PENALTIES = (0.002, 0.02, 0.05, 0.1, 0.2, 0.4)


class Cutter:
    """Remembers cuts: nodes with equal slowdowns are cut alike."""

    def __init__(self, slowdowns: Sequence[Sequence[float]], degrees: Sequence[int]) -> None:
        self._slowdowns, self._degrees = slowdowns, degrees
        self._known: dict[tuple[tuple[float, ...], int, float], Cut] = {}

    def all_groups(self, largest: int, penalty: float) -> tuple[Group, ...]:
        return tuple(g for node in range(len(self._slowdowns)) for g in self.node_groups(node, largest, penalty))

    def every(self, limit: int) -> Iterator[tuple[Group, ...]]:
        """Each way to cut all nodes into runs of devices, where there are at most `limit` of them."""
        alive = [sorted((x, d) for d, x in enumerate(row) if x < float("inf")) for row in self._slowdowns]
        if prod(_ways(len(row), self._degrees) for row in alive) <= limit:
            for chosen in product(*(self._runs(node, row) for node, row in enumerate(alive))):
                yield tuple(chain.from_iterable(chosen))

    def _runs(self, node: int, left: Sequence[tuple[float, int]]) -> list[tuple[Group, ...]]:
        if not left:
            return [()]
        return [
            (make_group(node, (d for _, d in left[:size]), left[size - 1][0]), *rest)
            for size in self._degrees
            if size <= len(left)
            for rest in self._runs(node, left[size:])
        ]

    def node_groups(self, node: int, largest: int, penalty: float) -> tuple[Group, ...]:
        """The node's groups, of at most `largest` devices, with the highest sum of speeds less penalties."""
        row = self._slowdowns[node]
        order = sorted(range(len(row)), key=lambda i: (row[i], i))
        alive = tuple(row[i] for i in order if row[i] < float("inf"))
        key = alive, largest, penalty
        if key not in self._known:
            self._known[key] = cut(alive, [d for d in self._degrees if d <= largest], penalty * largest)
        return tuple(make_group(node, (order[i] for i in places), alive[places[-1]]) for places in self._known[key])


def _ways(devices: int, degrees: Sequence[int]) -> int:
    found = [1]
    for stop in range(1, devices + 1):
        found.append(sum(found[stop - d] for d in degrees if d <= stop))
    return found[-1]


def cut(slowdowns: Sequence[float], degrees: Sequence[int], price: float) -> Cut:
    """Places by group, of devices in ascending order of slowdown. A group of k is as fast as k / its largest slowdown.

    Devices that give less than the price of their group are left out.
    """
    best: list[tuple[float, Cut]] = [(0.0, ())]
    for stop in range(1, len(slowdowns) + 1):
        found = best[stop - 1]
        for degree in degrees:
            if degree <= stop:
                value = best[stop - degree][0] + degree / slowdowns[stop - 1] - price
                if value > found[0] + 1e-9:
                    found = value, (*best[stop - degree][1], tuple(range(stop - degree, stop)))
        best.append(found)
    return best[-1][1]
