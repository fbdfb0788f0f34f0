"""The short probe: which ranks should run it, and what its seconds say. It has no sequences, no pauses and no waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from coxswain.stragglers.medians import Peers, lesser, or_one, row_medians
from coxswain.stragglers.values import Floats, Ints, Mask, Thresholds


class Probes:
    """`first`: seconds of each device's own first probe, run once its history is known; NaN: not yet."""

    def __init__(self, kinds: Sequence[str], thresholds: Thresholds) -> None:
        numbers = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
        self._kinds: Ints = np.array([numbers[kind] for kind in kinds], dtype=np.int64)
        self._of_kind, self._everyone, self._t = Peers(kinds), Peers([0] * len(kinds)), thresholds
        self.first: Floats = np.full(len(kinds), np.nan)

    def answers(self, seconds: Mapping[int, float], normal: Mask, known: Mask, stragglers: Mask) -> Floats:
        """The slowdown by rank beside normal ones of its kind and beside its own first probe; NaN: no answer.

        A straggler that has neither is compared with normal ranks of any kind.
        """
        taken = np.full(len(normal), np.nan)
        for rank, value in seconds.items():
            taken[rank] = value if 0 < value < float("inf") else np.nan
        controls = np.where(normal, taken, np.nan)
        beside = taken / self._of_kind.medians_of_others(controls)
        found = lesser(beside, self._own(taken, normal), self._t.allowed)
        found = np.where(np.isnan(found) & stragglers, taken / self._everyone.medians_of_others(controls), found)
        self.first = np.where(normal & known & np.isnan(self.first), taken, self.first)
        return found

    def slowdown_aside(self, seconds: float, first: float) -> float:
        """Of a device that is no rank's, beside the first probes of ranks, and beside its own `first`; NaN: neither is known."""
        beside = seconds / row_medians(self.first[None, :])
        return float(lesser(beside, np.array([seconds / first]), self._t.allowed)[0])

    def _own(self, taken: Floats, normal: Mask) -> Floats:
        """Less what all ranks share. Without another rank to compare with only a world of one has an answer."""
        own: Floats = taken / self.first
        shared = self._everyone.medians_of_others(np.where(normal, own, np.nan))
        return own / (or_one(shared) if len(own) == 1 else shared)

    def requests(self, suspects: Mask, healthy: Mask, known: Mask) -> tuple[int, ...]:
        """Suspects, controls of each one's kind (of any, where it has none), and those without a first probe."""
        wanted = suspects | (healthy & known & np.isnan(self.first))
        for kind in np.unique(self._kinds[suspects]):
            alike = healthy & (self._kinds == kind)
            wanted[self._spread(alike if alike.any() else healthy)] = True
        return tuple(int(rank) for rank in np.flatnonzero(wanted))

    def _spread(self, healthy: Mask) -> Ints:
        """Some of these ranks, far apart: those of one replica have the same long sequences."""
        ranks = np.flatnonzero(healthy)
        count = min(self._t.controls, ranks.size)
        return ranks[np.arange(count) * ranks.size // max(count, 1)]
