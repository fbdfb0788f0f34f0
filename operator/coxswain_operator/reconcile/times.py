"""Times as the API writes them: RFC 3339 in UTC, whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime

_LAST = 253_402_300_799  # of the year 9999: later ones cannot be written


def moment(seconds: float) -> datetime:
    """The nearest time that can be written: a report's may be any number."""
    return datetime.fromtimestamp(min(max(0.0, seconds), _LAST), UTC)


def stamp(seconds: float) -> str:
    return moment(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(stamp_: str | None) -> float:
    """Seconds since the epoch; 0 without a stamp."""
    return datetime.fromisoformat(stamp_).timestamp() if stamp_ else 0.0
