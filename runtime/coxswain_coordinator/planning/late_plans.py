"""What users see of plans that were not there in time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coxswain.names import EventReason
from coxswain_coordinator.planning.placers import FALL_BACK, Missing

_EVENT_SECONDS = 60.0
"""At least so far apart are two events: each costs a write of the status."""


class LatePlans:
    """Counts steps that the fall-back has placed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._last, self._unsaid = clock, -_EVENT_SECONDS, 0

    def event(self, missing: Sequence[Missing]) -> tuple[EventReason, str] | None:
        """Reason and message of the event that is due, of the first of these steps; None: none is."""
        if not missing:
            return None
        if 0 <= self._clock() - self._last < _EVENT_SECONDS:
            self._unsaid += len(missing)
            return None
        others, self._last, self._unsaid = len(missing) - 1 + self._unsaid, self._clock(), 0
        return reason_of(missing[0]), f"{_words(missing[0])}{f'; so it was for {others} more' if others else ''}"


def reason_of(missing: Missing) -> EventReason:
    return "PlanFailed" if missing.fault else "PlanLate"


def _words(missing: Missing) -> str:
    what = "the evaluation" if missing.step < 0 else f"step {missing.step}"
    if missing.fault:
        return f"{what}: balance {missing.balance} failed ({missing.fault}), so {FALL_BACK} has placed it"
    return (
        f"{what}: balance {missing.balance} had no plan after {missing.seconds:.1f} s, too late for the look-ahead, so "
        f"{FALL_BACK} has placed it; use a balance that plans faster, or fewer sequences a step"
    )
