"""Which checkpoints are events."""

from __future__ import annotations

import logging
from collections.abc import Callable

from coxswain.names import EventReason

log = logging.getLogger(__name__)

SECONDS = 60.0
"""At least so far apart are two events of checkpoints: each costs a write of the status."""


class CheckpointEvents:
    """Every checkpoint is logged, and at most one a minute is an event."""

    def __init__(self, clock: Callable[[], float], record_event: Callable[[EventReason, str], None]) -> None:
        self._clock, self._record_event = clock, record_event
        self._last, self._since = 0.0, 0  # the last event, and checkpoints since then

    def announce(self, saved: str) -> None:
        self._since += 1
        if 0 <= self._clock() - self._last < SECONDS:
            log.info("CheckpointSaved: %s", saved)
            return
        others = f"; {self._since} checkpoints since the event before" if self._since > 1 else ""
        self._record_event("CheckpointSaved", saved + others)
        self._last, self._since = self._clock(), 0
