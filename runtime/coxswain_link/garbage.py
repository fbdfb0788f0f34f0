"""Python's collector of garbage, between steps alone: a collection within a step makes all ranks wait for one.

What a process is made of is left out of all collections: by the fork server for its workers, which never look at the pages
that all share. All ranks collect everything else after the same steps.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

FULL_STEPS = 64
"""After so many steps old objects are looked at, too."""

IDLE_SECONDS = 10.0


def leave_out_what_exists() -> None:
    """For good: looking at all that torch imports takes 0.2 s, and copies the pages that forks share."""
    gc.collect()
    gc.freeze()


def collect_between_steps_alone() -> None:
    gc.disable()


def collect_at_any_time() -> None:
    """As Python does by itself."""
    gc.enable()


def between_steps(step: int) -> None:
    """Collects after a step, unless Python does so at any time."""
    if not gc.isenabled():
        gc.collect(1 if step % FULL_STEPS else 2)


class Sweeps:
    """Of a process that also waits for long without a step: then it collects now and then. Old objects are many: plans of a large
    job are a million, none of which is garbage."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last, self._idle = clock, clock(), 0

    def after_step(self, step: int) -> None:
        between_steps(step)
        self._last = self._clock()

    def idle(self) -> None:
        """Call it often where nothing is to be done."""
        if self._clock() - self._last >= IDLE_SECONDS:
            self._idle += 1
            self.after_step(self._idle)
