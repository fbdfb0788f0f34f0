"""Intervals of whole numbers, in arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def numbers_in(starts: Ints, lengths: Ints) -> Ints:
    """The numbers of all intervals [start, start + length), one after the other."""
    before = np.cumsum(lengths) - lengths
    found: Ints = np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
    return found
