"""When a world that does not end does not go on either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coxswain.layout import Seat
from coxswain_coordinator.state.session import Session

SILENCE = 30.0
"""Seconds without a sign of life of a worker, which gives one each second whatever its collectives wait for."""

ARRIVAL = 300.0
"""Seconds for the first sign of life in a new world."""

LONGEST = 60.0
PAUSE = 5.0
"""Seconds between two looks after which not the others were away, but this process."""

MEDIANS = 20
"""A step may take max(60 s, 20 x the median of the latest)."""


def silent(seats: Sequence[Seat], heard: Mapping[int, float], entered: float, now: float) -> str:
    """Names the rank that is stopped, cut off, or too busy to say so. Times by one monotonic clock."""
    for seat in seats:
        limit = SILENCE if seat.rank in heard else ARRIVAL
        seconds = now - heard.get(seat.rank, entered)
        if seconds > limit:
            where = f"trainer {seat.device.trainer}, device {seat.device.device}"
            return f"rank {seat.rank} ({where}) has been silent for {seconds:.0f} s"
    return ""


def stuck(step: int, missing: Sequence[int], durations: Sequence[float], seconds: float) -> str:
    """Says that an open step takes too long. `seconds`: since it began, or since the step before was closed."""
    median = sorted(durations)[len(durations) // 2] if durations else 0.0
    limit = max(LONGEST, MEDIANS * median)
    if seconds <= limit:
        return ""
    ranks = ", ".join(str(rank) for rank in missing[:8])
    return f"step {step} has not ended for {seconds:.0f} s (limit {limit:.0f} s); not done by rank {ranks or 'nobody'}"


class StallDetector:
    """Looks once a second whether the world at hand goes on; remembers when what it sees began."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._entered = self._since = self._looked = 0.0
        self._open = -1

    def judge(self, session: Session, durations: Sequence[float], now: float) -> str:
        """Why the world must be replaced; empty: it goes on, as far as can be told."""
        if session is self._session and now - self._looked < 1:
            return ""
        self._look(session, now)
        seats = [seat for seat in session.world.seats if seat.rank not in session.exited]
        if (who := silent(seats, session.last_heard, self._entered, now)) or session.begun < session.book.open:
            return who
        return stuck(session.book.open, session.book.missing_ranks(), durations, now - self._since)

    def _look(self, session: Session, now: float) -> None:
        if session is not self._session or now - self._looked > PAUSE:
            self._session, self._entered, self._since = session, now, now
            session.last_heard = dict.fromkeys(session.last_heard, now)
        if session.book.open != self._open:
            self._open, self._since = session.book.open, now
        self._looked = now
