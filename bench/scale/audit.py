"""Counts requests by user and verb, from the audit log."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import msgspec


class _User(msgspec.Struct):
    username: str = ""


class _Reference(msgspec.Struct):
    resource: str = ""
    subresource: str = ""


class _Line(msgspec.Struct):
    verb: str
    user: _User
    objectRef: _Reference = msgspec.field(default_factory=_Reference)


class Audit:
    """Counts from its creation on."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._begin = self._size()

    def _size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    async def settle(self, longest: float = 10.0) -> None:
        """Until the server, which writes its log up to a second late, has not written for two."""
        size, end = -1, time.monotonic() + longest
        while size != (size := self._size()) and time.monotonic() < end:  # noqa: ASYNC110 - a file cannot wake us
            await asyncio.sleep(2.0)

    def counts(self) -> dict[str, Counter[str]]:
        """By user: `verb resource` -> requests."""
        found: dict[str, Counter[str]] = {}
        with self._log.open("rb") as file:
            file.seek(self._begin)
            for line in file:
                if line.endswith(b"\n"):
                    entry = msgspec.json.decode(line, type=_Line)
                    place = f"{entry.objectRef.resource}/{entry.objectRef.subresource}".rstrip("/")
                    found.setdefault(entry.user.username, Counter())[f"{entry.verb} {place}"] += 1
        return found
