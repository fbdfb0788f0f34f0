"""JSON lines in the run directory: steps.jsonl and timings.jsonl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


class JsonlWriter:
    """Appends one JSON object a line and flushes each.

    Without a run directory nothing is written.
    """

    def __init__(self, folder: Path | None, name: str) -> None:
        self._path = None if folder is None else folder / name
        if self._path is not None and self._path.exists():
            _drop_torn_line(self._path)

    def append(self, value: Any) -> None:
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(value) + b"\n")


def _drop_torn_line(path: Path) -> None:
    """A killed writer may leave half a line behind the last line end."""
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(data.rfind(b"\n") + 1)
