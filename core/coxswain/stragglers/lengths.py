"""The cost model's error with long sequences: fitted on all ranks at once, and taken out of their rates."""

from __future__ import annotations

import numpy as np

from coxswain.stragglers.medians import push
from coxswain.stragglers.values import Floats

SURE = 0.7  # least correlation of rates with lengths
KEPT = 16  # steps of each rank


class LengthFit:
    """log rate = rank's own + slope x length, with one slope for all ranks."""

    def __init__(self, ranks: int) -> None:
        self._lengths = np.full((ranks, KEPT), np.nan)
        self._logs = np.full((ranks, KEPT), np.nan)

    def factors(self, rates: Floats, longest: Floats | None) -> Floats:
        """How much slower each rank is than it would be with the step's shortest of these lengths; 1: no such error."""
        if longest is None:
            return np.ones_like(rates)
        present = ~np.isnan(rates) & ~np.isnan(longest)
        push(self._lengths, present, longest)
        push(self._logs, present, np.log(np.where(present, rates, 1.0)))
        slope = self._slope()
        if not slope or not present.any():
            return np.ones_like(rates)
        return np.where(present, np.exp(slope * (longest - longest[present].min())), 1.0)

    def _slope(self) -> float:
        """0: lengths do not explain rates."""
        x, y = _deviations(self._lengths), _deviations(self._logs)
        xx, yy, xy = float((x * x).sum()), float((y * y).sum()), float((x * y).sum())
        return xy / xx if xx > 0 and xy > SURE * (xx * yy) ** 0.5 else 0.0


def _deviations(values: Floats) -> Floats:
    """From each row's mean; 0 where nothing is known."""
    known = ~np.isnan(values)
    filled = np.where(known, values, 0.0)
    means = filled.sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return np.where(known, filled - means[:, None], 0.0)
