"""What each device takes when it is healthy: a median of its first healthy steps, which then stays.

It does not follow the device: a slow ramp, or a staircase of small steps, would be followed as well.
"""

from __future__ import annotations

import numpy as np

from coxswain.stragglers.medians import row_medians
from coxswain.stragglers.values import Floats, Ints, Mask


class Baseline:
    """`values`: NaN until as many steps as `length` were learned."""

    def __init__(self, ranks: int, length: int) -> None:
        self._learned = np.full((ranks, length), np.nan)
        self._counts: Ints = np.zeros(ranks, dtype=np.int64)
        self._seen: Ints = np.zeros(ranks, dtype=np.int64)
        self.values: Floats = np.full(ranks, np.nan)

    @property
    def settled(self) -> Mask:
        """Ranks with a history, and those that had the time for one: they have been slow from the start."""
        return ~np.isnan(self.values) | (self._seen >= 2 * self._learned.shape[1])

    def learn(self, wanted: Mask, values: Floats) -> None:
        length = self._learned.shape[1]
        self._seen += ~np.isnan(values)
        rows = np.flatnonzero(wanted & (self._counts < length))
        if rows.size:
            self._learned[rows, self._counts[rows]] = values[rows]
            self._counts[rows] += 1
            done = rows[self._counts[rows] == length]
            self.values[done] = row_medians(self._learned[done])

    def take(self, other: Baseline, mine: Ints, theirs: Ints) -> None:
        """Continues the history of rows `theirs` in rows `mine`."""
        self._learned[mine], self._counts[mine] = other._learned[theirs], other._counts[theirs]
        self._seen[mine], self.values[mine] = other._seen[theirs], other.values[theirs]
