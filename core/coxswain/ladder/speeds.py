"""Slowdowns rounded for planning, so that speeds change rarely and plans of equal situations are found again."""

from __future__ import annotations

from math import log

STEP = 1.05
"""Speeds are 1 over a power of it."""

_KEPT = 0.75  # steps that a slowdown may be from the power in force


def bucket(slowdown: float, before: int) -> int:
    """The power of STEP next to a slowdown; that of before, as long as it is near enough."""
    if slowdown <= 1.0:
        return 0
    exact = log(slowdown) / log(STEP)
    return before if before and abs(exact - before) <= _KEPT else max(1, round(exact))


def speed_of(power: int) -> float:
    return round(STEP**-power, 6)
