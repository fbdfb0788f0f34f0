"""Which source of a mix is furthest behind its weight, in exact integers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

MANY = 48
"""Sources from which an estimate of all and exact figures of the nearest take less time than exact figures of all."""

_ERROR = 2.0**-48
"""Of the product of all weights and all tokens: what the floats of two deficits may be off by, with room."""


class Deficits:
    """Of the sources that are still in the mix: weight x all tokens - own tokens x all weights.

    One that has left does not distort the others' shares.
    """

    def __init__(self, weights: Iterable[int], tokens: Iterable[int]) -> None:
        self._weights, self._tokens = list(weights), list(tokens)
        self._begin()

    def _begin(self) -> None:
        self._all_weights, self._all_tokens = sum(self._weights), sum(self._tokens)
        self._about = np.array(self._weights, np.float64), np.array(self._tokens, np.float64)

    def largest(self) -> int:
        """The place of the largest deficit. A tie goes to the first, which is the first by name."""
        places = range(len(self._weights)) if len(self._weights) < MANY else self._near()
        surplus = [self._tokens[i] * self._all_weights - self._weights[i] * self._all_tokens for i in places]
        return places[surplus.index(min(surplus))]

    def set_tokens(self, place: int, tokens: int) -> None:
        """That source's tokens from now on."""
        self._all_tokens += tokens - self._tokens[place]
        self._tokens[place] = self._about[1][place] = tokens

    def leave(self, place: int) -> None:
        """That source is out of the mix; the places behind it move up."""
        del self._weights[place], self._tokens[place]
        self._begin()

    def _near(self) -> Sequence[int]:
        """All places that may be the largest, by floats."""
        weights, tokens = self._about
        surplus = tokens * float(self._all_weights) - weights * float(self._all_tokens)
        nearest = surplus.min() + _ERROR * self._all_weights * self._all_tokens
        found: list[int] = np.flatnonzero(surplus <= nearest).tolist()
        return found
