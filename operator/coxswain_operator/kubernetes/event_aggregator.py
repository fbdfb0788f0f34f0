"""Decides which events become Events of their own and which raise the count of one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_SECONDS = 600.0  # after which the same message is a new Event
DIFFERENT = 5  # Events of one reason about one job within a window; what follows counts up the last of them

Subject = tuple[str, str]  # the job's uid, and the reason


@dataclass(slots=True)
class EventSeries:
    """One Event. `published`: the count that the API server has."""

    path: str
    message: str
    last: float
    count: int = 1
    published: int = 1


class EventAggregator:
    """All Events of the last while."""

    def __init__(self) -> None:
        self._series: dict[Subject, list[EventSeries]] = {}

    @property
    def remembered(self) -> int:
        """How many Events are remembered."""
        return sum(map(len, self._series.values()))

    def add(self, subject: Subject, message: str, path: str, now: float) -> EventSeries | None:
        """Returns a new Event at this path; None: an existing one was counted up."""
        present = [s for s in self._series.get(subject, ()) if now - s.last < WINDOW_SECONDS]
        self._series[subject] = present
        same = next((s for s in present if s.message == message), None)
        if same is None and len(present) < DIFFERENT:
            present.append(EventSeries(path, message, now))
            return present[-1]
        counted = same or present[-1]
        counted.count, counted.last = counted.count + 1, now
        return None

    def unpublished(self) -> list[EventSeries]:
        """Those whose count is higher than the API server's."""
        return [s for present in self._series.values() for s in present if s.count > s.published]

    def drop(self, series: EventSeries) -> None:
        """The API server does not have this Event: the next one with its message is new."""
        for present in self._series.values():
            present[:] = [s for s in present if s is not series]

    def forget(self, now: float) -> None:
        """What is older than a window."""
        self._series = {
            subject: kept
            for subject, present in self._series.items()
            if (kept := [s for s in present if now - s.last < WINDOW_SECONDS or s.count > s.published])
        }
