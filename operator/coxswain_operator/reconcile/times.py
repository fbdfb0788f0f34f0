"""Times as the API writes them: RFC 3339 in UTC, whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(stamp_: str | None) -> float:
    """Seconds since the epoch; 0 without a stamp."""
    return datetime.fromisoformat(stamp_).timestamp() if stamp_ else 0.0
