"""From slowdowns of ranks to speeds of replicas for the planner, rounded so that they change rarely. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from coxswain.ladder.speeds import STEP, bucket, speed_of
from coxswain.layout import Seat
from coxswain.stragglers.values import Floats


def replica_speeds(slowdowns: Floats, seats: Sequence[Seat], before: Sequence[float]) -> tuple[float, ...]:
    """A replica is as fast as its slowest rank. Empty: all are 1. `before`: those in force, or none."""
    worst = [1.0] * (1 + max(seat.replica for seat in seats))
    for seat in seats:
        worst[seat.replica] = max(worst[seat.replica], float(slowdowns[seat.rank]))
    known = before or [1.0] * len(worst)
    powers = [bucket(s, round(-log(v) / log(STEP))) for s, v in zip(worst, known, strict=True)]
    return tuple(speed_of(power) for power in powers) if any(powers) else ()
