"""What happened to the job, for Events, `cox` and events.jsonl."""

from __future__ import annotations

from collections import deque

import msgspec

from coxswain.wire import JobEvent
from coxswain_coordinator.journal import Journal

_REMEMBERED = 64


class EventLine(msgspec.Struct, frozen=True):
    """One line of events.jsonl."""

    time: float
    reason: str
    message: str
    object: str


class EventBook:
    """Numbers events, writes them down, remembers the latest."""

    def __init__(self, journal: Journal, about: str) -> None:
        self._journal, self._about = journal, about
        self._events: deque[JobEvent] = deque(maxlen=_REMEMBERED)
        self._next = 0

    def add(self, now: float, reason: str, message: str, warning: bool = False) -> None:
        self._events.append(JobEvent(self._next, now, reason, message, warning))
        self._next += 1
        self._journal.append(EventLine(now, reason, message, self._about))

    def latest(self) -> tuple[JobEvent, ...]:
        return tuple(self._events)
