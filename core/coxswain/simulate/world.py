"""What all runs of one trace share: costs under each truth, seconds of each layout under it, and estimates."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from coxswain.ladder.values import Options
from coxswain.layout import Device
from coxswain.plan.layouts.chains import with_layers
from coxswain.plan.layouts.cluster import Node
from coxswain.plan.layouts.costs import Costs
from coxswain.plan.layouts.planner import healthy_plan
from coxswain.plan.layouts.settle import Draft, Settler
from coxswain.simulate.truth import Truth
from coxswain.stragglers.values import Floats

T = TypeVar("T")
LOAD = 2e9  # bytes a second that a device loads of a checkpoint


class World:
    """What all runs of one trace share: costs under each truth, and seconds of each layout under it."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.healthy = healthy_plan(costs)
        self.options: dict[object, Options] = {}
        self._costs: dict[object, Costs] = {}
        self._judges: dict[tuple[float, ...], Judge] = {}
        self._ends: dict[object, tuple[Draft, Floats]] = {}
        self._kept: dict[object, tuple[tuple[Draft, ...], object]] = {}

    def kept(self, name: str, key: Hashable, drafts: tuple[Draft, ...], find: Callable[[], T]) -> T:
        """What was found before for the same key and drafts."""
        whole = name, key, tuple(map(id, drafts))
        if whole not in self._kept:
            self._kept[whole] = drafts, find()
        return self._kept[whole][1]  # type: ignore[return-value]

    def under(self, truth: Truth) -> Costs:
        if truth.key not in self._costs:
            self._costs[truth.key] = self._of(truth.slowdowns, truth.bandwidths)
        return self._costs[truth.key]

    def _of(self, slowdowns: Sequence[Sequence[float]] | None, bandwidths: Sequence[float]) -> Costs:
        cluster = self.costs.cluster
        if slowdowns:
            cluster = cluster.with_slowdowns([list(row) for row in slowdowns])
        nodes = [Node(n.name, n.devices, n.bandwidth * part) for n, part in zip(cluster.nodes, bandwidths, strict=True)]
        found = Costs(msgspec.structs.replace(cluster, nodes=tuple(nodes)), self.costs.model)
        found.limit = self.costs.limit
        return found

    def ends(self, draft: Draft, truth: Truth) -> Floats:
        """Seconds of each replica's part of a step; infinite where a device is lost."""
        key = id(draft), truth.key
        if key not in self._ends:
            rates = truth.bandwidths
            if rates not in self._judges:
                self._judges[rates] = Judge(self._of(None, rates))
            self._ends[key] = draft, self._judges[rates].ends(draft, truth)
        return self._ends[key][1]


class Judge:
    """Seconds of replicas, under the bandwidths of its costs. A replica without a slow device is simulated once."""

    def __init__(self, costs: Costs) -> None:
        self._costs, self._settler = costs, Settler(costs)
        self._well: dict[int, tuple[Draft, Floats, dict[Device, int]]] = {}

    def ends(self, draft: Draft, truth: Truth) -> Floats:
        if id(draft) not in self._well:
            ends = np.array([self._seconds(draft, r, {}) for r in range(len(draft.chains))])
            self._well[id(draft)] = draft, ends, replicas_of(draft)
        _, well, homes = self._well[id(draft)]
        found = well.copy()
        odd = {Device(n, d): x for (n, d), x in truth.key}
        for r in {homes[device] for device in odd if device in homes}:
            found[r] = self._seconds(draft, r, odd)
        return found

    def _seconds(self, draft: Draft, replica: int, odd: Mapping[Device, float]) -> float:
        chain = draft.chains[replica]
        groups = [g._replace(slowdown=max(odd.get(Device(g.node, d), 1.0) for d in g.devices)) for g in chain.groups]
        if any(math.isinf(g.slowdown) for g in groups):
            return math.inf
        now = with_layers(self._costs, groups, chain.layers, len(draft.chains))
        return self._settler.seconds(now, draft.counts[replica])


def replicas_of(draft: Draft) -> dict[Device, int]:
    """The replica of each device."""
    return {Device(g.node, d): r for r, chain in enumerate(draft.chains) for g in chain.groups for d in g.devices}


def load_seconds(world: World) -> float:
    """Of a checkpoint: weights and optimizer state, read by all devices at once."""
    elements = world.costs.elements(1, world.costs.model.layers, True, True)
    return 14 * elements / world.costs.cluster.devices / LOAD


def planning_seconds(devices: int) -> float:
    """Of the layout planner and its lists of what moves: estimated, above what `make bench-layout` prints for the search."""
    return float(np.exp(np.interp(math.log(devices), np.log(_DEVICES), np.log(_PLANNING))))


_DEVICES: Sequence[float] = (8, 64, 1024, 4096)
_PLANNING: Sequence[float] = (0.5, 2.0, 5.0, 12.0)
