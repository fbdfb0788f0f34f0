"""How far predicted seconds are from measured ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import quantiles

LEAST_SECONDS = 1e-9
"""Of a measured or planned time: less says nothing."""


@dataclass(frozen=True, slots=True)
class Error:
    """|predicted / measured - 1| over `count` steps: its median, and what 95 % of them stay below."""

    p50: float
    p95: float
    count: int


def error_of(pairs: Iterable[tuple[float, float]]) -> Error:
    """Of pairs (predicted, measured); pairs with a 0, or next to it, say nothing and do not count."""
    shares = [abs(planned / taken - 1) for planned, taken in pairs if min(abs(planned), abs(taken)) >= LEAST_SECONDS]
    if not shares:
        return Error(0.0, 0.0, 0)
    cuts = quantiles([*shares, *shares] if len(shares) == 1 else shares, n=100, method="inclusive")
    return Error(cuts[49], cuts[94], len(shares))
