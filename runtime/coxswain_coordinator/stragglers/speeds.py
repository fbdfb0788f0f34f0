"""From slowdowns of ranks to speeds of replicas for the planner, rounded so that they change rarely. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from coxswain.layout import Seat
from coxswain.stragglers.values import Floats

STEP = 1.05
"""Speeds are 1 over a power of it."""

_KEPT = 0.75  # steps that a slowdown may be from the power in force


def bucket(slowdown: float, before: int) -> int:
    """The power of STEP next to a slowdown; that of before, as long as it is near enough."""
    exact = log(max(slowdown, 1.0)) / log(STEP)
    if slowdown <= 1.0:
        return 0
    return before if before and abs(exact - before) <= _KEPT else max(1, round(exact))


def replica_speeds(slowdowns: Floats, seats: Sequence[Seat], before: Sequence[float]) -> tuple[float, ...]:
    """A replica is as fast as its slowest rank. Empty: all are 1. `before`: those in force, or none."""
    worst = [1.0] * (1 + max(seat.replica for seat in seats))
    for seat in seats:
        worst[seat.replica] = max(worst[seat.replica], float(slowdowns[seat.rank]))
    known = before or [1.0] * len(worst)
    powers = [bucket(s, round(-log(v) / log(STEP))) for s, v in zip(worst, known, strict=True)]
    return tuple(round(STEP**-power, 6) for power in powers) if any(powers) else ()
