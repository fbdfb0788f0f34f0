"""Measured seconds by tokens: interpolated within the measured range; beyond it they go on as the fit's formula does."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Point = tuple[int, float]


class Tables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Milliseconds of attention, forward and backward together, by tokens; an empty table: the formula holds.

    `attention`: causal, of a whole sequence. `ring`: one step of a ring, by the tokens of one of its members.
    """

    attention: tuple[Point, ...] = ()
    ring: tuple[Point, ...] = ()


def faults(points: Iterable[Point]) -> str:
    """Says what is wrong with a table; empty: nothing."""
    tokens, values = tuple(zip(*points, strict=True)) or ((), ())
    if any(not 0 < value < float("inf") for value in (*tokens, *values)):
        return "its numbers must be finite and above 0"
    if any(b <= a for column in (tokens, values) for a, b in pairwise(column)):
        return "tokens and times must rise from point to point"
    return ""


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
