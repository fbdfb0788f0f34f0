"""Detects a world that neither ends nor makes progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from coxswain.layout import Seat
from coxswain_coordinator.state.registry import join
from coxswain_coordinator.state.session import Session

SILENCE = 30.0
"""Seconds without a heartbeat of a worker, which sends one each second even inside a collective."""

ARRIVAL = 300.0
"""Seconds until the first heartbeat in a new world."""

LONGEST = 60.0
PAUSE = 5.0
"""Seconds between two checks beyond which this process was paused, not the others."""

MEDIANS = 20
"""A step may take max(60 s, 20 x the median of the latest)."""


Place = Callable[[int], str]
"""Name and node of a trainer, from its index in the world."""


def named(seat: Seat, place: Place) -> str:
    return f"{seat.rank} on {place(seat.device.trainer)}"


def silent(seats: Sequence[Seat], last_heard: Mapping[int, float], entered: float, now: float, place: Place) -> str:
    """Names a rank whose heartbeats have stopped. Times by one monotonic clock."""
    for seat in seats:
        limit = SILENCE if seat.rank in last_heard else ARRIVAL
        seconds = now - last_heard.get(seat.rank, entered)
        if seconds > limit:
            return f"rank {named(seat, place)} has been silent for {seconds:.0f} s"
    return ""


def stuck(step: int, missing: Sequence[str], durations: Sequence[float], seconds: float) -> str:
    """Describes a step that takes too long.

    `seconds`: since it began or the step before was closed.
    """
    median = sorted(durations)[len(durations) // 2] if durations else 0.0
    limit = max(LONGEST, MEDIANS * median)
    if seconds <= limit:
        return ""
    ranks = join(missing) or "none"
    return f"step {step} has not ended for {seconds:.0f} s (limit {limit:.0f} s); not done by rank {ranks}"


class StallDetector:
    """Checks once a second whether the current world makes progress."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._entered = self._since = self._looked = 0.0
        self._open = -1

    def judge(self, session: Session, durations: Sequence[float], now: float, place: Place) -> str:
        """Why the world must be replaced; empty: it makes progress."""
        if session is self._session and now - self._looked < 1:
            return ""
        self._look(session, now)
        seats = [seat for seat in session.world.seats if seat.rank not in session.exited]
        if (why := silent(seats, session.last_heard, self._entered, now, place)) or session.begun < session.book.open:
            return why
        late = [named(session.world.seats[rank], place) for rank in session.book.missing_ranks()]
        return stuck(session.book.open, late, durations, now - self._since)

    def _look(self, session: Session, now: float) -> None:
        if session is not self._session or now - self._looked > PAUSE:
            self._session, self._entered, self._since = session, now, now
            session.last_heard = dict.fromkeys(session.last_heard, now)
        if session.book.open != self._open:
            self._open, self._since = session.book.open, now
        self._looked = now
