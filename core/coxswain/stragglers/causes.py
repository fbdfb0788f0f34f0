"""Why a rank takes long: its device, its node, or something that no device is to blame for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coxswain.stragglers.baseline import Baseline
from coxswain.stragglers.medians import Peers, push, row_medians
from coxswain.stragglers.values import Cause, Floats, Ints, Mask, Place, Step

MOST = 0.75  # of a node's devices
ALIKE = 1.2  # apart by no more than this factor


def stragglers_causes(marked: Mask, present: Mask, slowdowns: Floats, nodes: Ints, on_node: Peers) -> Ints:
    """NODE where most of the node's present devices are slow alike, else DEVICE. Of ranks that are not marked NONE."""
    others = on_node.medians_of_others(np.where(marked, slowdowns, np.nan))
    alike = marked & (np.maximum(slowdowns / others, others / slowdowns) <= ALIKE)
    count = nodes.max() + 1
    slow, all_of = np.bincount(nodes[alike], minlength=count), np.bincount(nodes[present | marked], minlength=count)
    whole = ((slow >= 2) & (slow >= MOST * all_of))[nodes]
    return np.where(marked, np.where(whole & alike, Cause.NODE, Cause.DEVICE), Cause.NONE)


class LastStage:
    """Beside the other stages, whose seconds the cost model has right more often than those of the loss layer."""

    def __init__(self, places: Sequence[Place]) -> None:
        deepest: dict[int, int] = {}
        for place in places:
            deepest[place.replica] = max(deepest.get(place.replica, 0), place.stage)
        self.ranks: Mask = np.array([p.stage == deepest[p.replica] > 0 for p in places], dtype=bool)

    def factor(self, rates: Floats) -> float:
        """Median rate of last stages over that of others; 1: unknown. Stragglers' rates are NaN."""
        if not self.ranks.any() or self.ranks.all():
            return 1.0
        mine, others = (row_medians(rates[None, which])[0] for which in (self.ranks, ~self.ranks))
        return float(mine / others) if mine > 0 and others > 0 else 1.0


class Waits:
    """Waits as parts of compute; each rank's wait for others has its own history, since a pipeline always waits."""

    def __init__(self, ranks: int, learn: int, length: int, most: float) -> None:
        self.baseline = Baseline(ranks, learn)
        self._most = most
        self._network, self._host = np.full((ranks, length), np.nan), np.full((ranks, length), np.nan)

    def causes(self, step: Step, blamed: bool, ranks: int) -> Ints:
        """HOST and NETWORK by rank. `blamed`: some rank computes slower, so that waits for it follow."""
        present = step.compute > 0
        host = self._recent(self._host, present, step.host, step.compute) >= self._most
        network = self._recent(self._network, present, step.network, step.compute)
        excess = network - self.baseline.values
        if not blamed and not host.any():
            self.baseline.learn(present & ~np.isnan(network), network)
        else:
            excess = np.full(ranks, np.nan)
        return np.where(host, Cause.HOST, np.where(excess >= self._most, Cause.NETWORK, Cause.NONE))

    @staticmethod
    def _recent(kept: Floats, present: Mask, waits: Floats | None, compute: Floats) -> Floats:
        """The median of the last waits over compute; NaN: none are known."""
        if waits is not None:
            push(kept, present, waits / np.where(present, compute, 1.0))
        return row_medians(kept)
