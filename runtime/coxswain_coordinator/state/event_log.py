"""What happened to the job. The operator publishes these from the report as Events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from coxswain.wire import JobEvent

_REMEMBERED = 64


class EventLog:
    """Numbers events and keeps the latest.

    Numbers begin at the start time in milliseconds, so they keep growing across coordinator restarts.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._next = clock, int(1000 * clock())
        self._events: deque[JobEvent] = deque(maxlen=_REMEMBERED)

    def add(self, reason: str, message: str, warning: bool = False) -> None:
        self._events.append(JobEvent(self._next, self._clock(), reason, message, warning))
        self._next += 1

    def latest(self) -> tuple[JobEvent, ...]:
        return tuple(self._events)
