"""JSON lines in the run directory: steps.jsonl, events.jsonl, timings.jsonl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


class Journal:
    """Appends one JSON object a line and flushes each. Without a run directory nothing is written."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._path = None if folder is None else folder / name
        if self._path is not None:
            _end_torn_line(self._path)

    def append(self, value: Any) -> None:
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(value) + b"\n")


def _end_torn_line(path: Path) -> None:
    """A killed writer may leave half a line; closing it keeps the next one whole, and readers skip what does not parse."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if file.tell() > 0:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
