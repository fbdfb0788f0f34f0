"""A clock for decisions, which stays even when the machine's clock is set."""

from __future__ import annotations

import time
from collections.abc import Callable

SLEW = 0.1  # share of the passing time by which a jump of the machine's clock is followed


def _elapsed() -> float:
    """Seconds since the machine started, including its suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """Seconds since 1970, taken from the machine's clock at the start; never jumps or goes back.

    Setting the machine's clock, by hand or by NTP, neither ends a job by its deadline nor stretches
    a back-off by an hour. The difference is corrected slowly, so a wrong start does not persist.
    """

    def __init__(self, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] = _elapsed) -> None:
        self._wall, self._elapsed = wall, elapsed
        self._now, self._looked = wall(), elapsed()

    def __call__(self) -> float:
        looked = self._elapsed()
        passed, self._looked = looked - self._looked, looked
        behind = self._wall() - self._now - passed
        self._now += passed + max(-SLEW * passed, min(SLEW * passed, behind))
        return self._now
