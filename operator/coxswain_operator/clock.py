"""A clock for decisions: it advances evenly although the clock that it follows is set."""

from __future__ import annotations

import time
from collections.abc import Callable

SLEW = 0.1  # share of the passing time by which a jump of the machine's clock is followed


def _elapsed() -> float:
    """Seconds since the machine started, including its suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """Seconds since 1970, taken from `wall` at the start: this machine's clock, or a server's; never jumps or goes back.

    A clock that is set, by hand or by NTP, neither ends a job by its deadline nor
    stretches a back-off by an hour. The difference is made up slowly, so a clock that was wrong at
    the start does not stay wrong.
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
