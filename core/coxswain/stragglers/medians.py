"""Lower medians by rank and of a rank's peers. Of two values the lower counts: half of the peers may be slow."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from coxswain.stragglers.values import Floats, Mask


def row_medians(values: Floats) -> Floats:
    """Of each row's values that are not NaN; NaN: the row has none."""
    ordered = np.sort(values, axis=1)
    counts = np.count_nonzero(~np.isnan(ordered), axis=1)
    found: Floats = ordered[np.arange(len(values)), np.maximum(counts - 1, 0) // 2]
    return found


class Peers:
    """Ranks with equal labels are peers."""

    def __init__(self, labels: Sequence[Hashable]) -> None:
        numbers = {label: i for i, label in enumerate(dict.fromkeys(labels))}
        self._row = np.array([numbers[label] for label in labels], dtype=np.int64)
        seen = [0] * len(numbers)
        columns = []
        for row in self._row:
            columns.append(seen[row])
            seen[row] += 1
        self._column = np.array(columns, dtype=np.int64)
        self._shape = len(numbers), max(seen, default=0)

    def medians_of_others(self, values: Floats) -> Floats:
        """For each rank the lower median of its peers' values, its own left out; NaN: no peer has one."""
        table = np.full(self._shape, np.nan)
        table[self._row, self._column] = values
        table.sort(axis=1)  # NaN last
        counts, rows = np.count_nonzero(~np.isnan(table), axis=1), np.arange(len(table))
        middle = np.maximum(counts - 2, 0) // 2  # of a row less one known value, at or below it
        low, above = table[rows, middle][self._row], table[rows, np.minimum(middle + 1, self._shape[1] - 1)][self._row]
        others = np.where(values <= low, above, low)
        unknown = np.isnan(values)
        found = np.where(unknown, table[rows, np.maximum(counts - 1, 0) // 2][self._row], others)
        return np.where(counts[self._row] - ~unknown > 0, found, np.nan)


def or_one(values: Floats) -> Floats:
    """1 where a factor is not known."""
    return np.where(np.isnan(values), 1.0, values)


def lesser(beside: Floats, own: Floats, allowed: float) -> Floats:
    """Beside peers that may be `allowed` times slower, and beside the own history; where one is unknown the other."""
    return np.fmin(np.where(np.isnan(own), beside, beside * allowed), own)


def push(recent: Floats, present: Mask, values: Floats) -> None:
    """Appends to the rows of ranks that are present; the oldest value falls out. Rows of other ranks stay."""
    recent[present, :-1] = recent[present, 1:]
    recent[present, -1] = values[present]
