"""How slow each rank is in one step: beside its peers and beside its own history. Both must say so."""

from __future__ import annotations

import numpy as np

from coxswain.stragglers.baseline import Baseline
from coxswain.stragglers.medians import Peers, lesser, or_one
from coxswain.stragglers.values import Floats, Mask, Thresholds


class Scores:
    """A rate is seconds of compute for a second of planned work."""

    def __init__(self, roles: Peers, everyone: Peers, baseline: Baseline, thresholds: Thresholds) -> None:
        self._roles, self._everyone, self._baseline, self._t = roles, everyone, baseline, thresholds

    def observe(self, rates: Floats, stragglers: Mask) -> Floats:
        """The slowdown by rank; NaN where the rate is, and where nothing says how fast a straggler is: such a rank is not well.

        Steps in which the rank is no slower than peers make its history.
        """
        beside = rates / self._roles.medians_of_others(rates)
        found = lesser(beside * self._risen(rates, stragglers), self._own(rates, stragglers), self._t.allowed)
        self._baseline.learn(~np.isnan(rates) & ~(beside >= self._t.enter) & ~stragglers, rates)
        return np.where(np.isnan(rates) | (stragglers & np.isnan(found)), np.nan, or_one(found))

    def _own(self, rates: Floats, stragglers: Mask) -> Floats:
        """Beside its own history, less what all ranks share: a cluster that slows down has no straggler.

        What stragglers have is shared by none: after a change of the layout they alone may have a history.
        """
        own = rates / self._baseline.values
        shared: Floats = own / or_one(self._everyone.medians_of_others(np.where(stragglers, np.nan, own)))
        return shared

    def _risen(self, rates: Floats, stragglers: Mask) -> Floats:
        """How much slower most peers are than they were: peers on the same slow node are no measure."""
        return np.maximum(1.0, or_one(self._roles.medians_of_others(self._own(rates, stragglers))))
