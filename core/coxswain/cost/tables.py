"""Measured seconds by tokens: interpolated within the measured range; beyond it they go on as the fit's formula does."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coxswain.cost.hardware import Point

Floats = NDArray[np.float64]


class Curve:
    """Seconds as a function of tokens through measured points.

    A power law joins neighbours, so the curve rises as the points do. Beyond the last point seconds grow with the square
    of tokens, below the first one in proportion.
    """

    def __init__(self, points: Iterable[Point]) -> None:
        tokens, milliseconds = np.asarray(tuple(points), dtype=np.float64).T
        self._tokens, self._seconds = tokens, milliseconds * 1e-3
        self._logs = np.log(self._tokens), np.log(self._seconds)
        self._least = np.minimum.accumulate(self._seconds / self._tokens**2)

    def seconds(self, tokens: ArrayLike) -> Floats:
        s = np.asarray(tokens, dtype=np.float64)
        first, last = self._tokens[0], self._tokens[-1]
        within: Floats = np.exp(np.interp(np.log(np.clip(s, first, last)), *self._logs))
        found: Floats = within * np.minimum(s / first, 1.0) * np.square(np.maximum(s / last, 1.0))
        return found

    def least_per_square(self, tokens: ArrayLike) -> Floats:
        """The least seconds a token squared on (0, tokens]: between points it rises or falls all the way."""
        s = np.asarray(tokens, dtype=np.float64)
        known = np.concatenate([[np.inf], self._least])[np.searchsorted(self._tokens, s, side="right")]
        least: Floats = np.minimum(known, self.seconds(s) / np.square(s))
        return least


def curve(points: tuple[Point, ...]) -> Curve | None:
    return Curve(points) if points else None
