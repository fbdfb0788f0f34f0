"""The order of a replica's stages: each set of groups is put in order once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import permutations

from coxswain.plan.layouts.chains import Chain, chain
from coxswain.plan.layouts.costs import Costs, Group
from coxswain.plan.layouts.settle import Settler

SMALL = 16  # devices: every chain is simulated, in every order where it has few stages
ALL_LASTS = 256  # devices: beyond, a replica's groups stand in one order until the end of the search
_PERMUTED = 4  # stages

Look = tuple[int, float, float, int]  # degree, slowdown, and the node's bandwidth and number among those of the chain


class Chains:
    """Evaluates chains, each once."""

    def __init__(self, costs: Costs) -> None:
        self.costs, self.settler = costs, Settler(costs)
        self.simulated = costs.cluster.devices <= SMALL
        self._known: dict[tuple[int, tuple[Group, ...]], Chain | None] = {}
        self._alike: dict[tuple[int, tuple[Look, ...]], tuple[tuple[int, ...], Chain] | None] = {}

    def of(self, groups: Iterable[Group], replicas: int) -> Chain | None:
        """The chain of these groups in a good order; None: there are no groups, or the model does not fit on them."""
        key = replicas, ordered(groups)
        if key not in self._known:
            self._known[key] = self._found(key[1], replicas)
        return self._known[key]

    def _found(self, groups: tuple[Group, ...], replicas: int) -> Chain | None:
        """Groups that look alike take equally long in each order, so the order of the first ones is that of all."""
        key = replicas, self._looks(groups)
        if key not in self._alike:
            best = self._best(groups, replicas)
            self._alike[key] = (tuple(map(groups.index, best.groups)), best) if best else None
        found = self._alike[key]
        return found and replace(found[1], groups=tuple(groups[i] for i in found[0]))

    def _looks(self, groups: tuple[Group, ...]) -> tuple[Look, ...]:
        """All that seconds and bytes of chains follow from. Of its node a group has the bandwidth, and a number by first use."""
        nodes, numbers = self.costs.cluster.nodes, dict[int, int]()
        return tuple(
            (g.degree, g.slowdown, nodes[g.node].bandwidth, numbers.setdefault(g.node, len(numbers))) for g in groups
        )

    def _best(self, groups: tuple[Group, ...], replicas: int) -> Chain | None:
        count = max(1, self.costs.cluster.micro_batches // replicas)
        best: tuple[float, Chain] | None = None
        for order in self._orders(groups):
            one = chain(self.costs, order, replicas)
            if one:
                seconds = self.settler.seconds(one, count) if self.simulated else one.estimate(count)
                if best is None or seconds < best[0] - 1e-12:
                    best = seconds, one
        return best[1] if best else None

    def _orders(self, groups: tuple[Group, ...]) -> Iterator[tuple[Group, ...]]:
        """The given order, and with a group of each other sort at the end, which has the loss; of a few, every order."""
        if not groups:
            return
        yield groups
        if self.simulated and len(groups) <= _PERMUTED:
            yield from permutations(groups)
        elif self.costs.cluster.devices <= ALL_LASTS:
            last = {sort(g): i for i, g in enumerate(groups) if sort(g) != sort(groups[-1])}
            yield from ((*groups[:i], *groups[i + 1 :], groups[i]) for i in last.values())


def ordered(groups: Iterable[Group]) -> tuple[Group, ...]:
    """Weak groups first: they have few layers, where each layer keeps most activations; the loss is on a strong one."""
    return tuple(sorted(groups, key=lambda g: (strength(g), g.node, g.devices)))


def strength(group: Group) -> float:
    return group.degree / group.slowdown


def sort(group: Group) -> tuple[int, float]:
    """Groups of one sort take equally long for a layer."""
    return group.degree, group.slowdown
