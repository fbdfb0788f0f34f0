"""JSON lines in the run directory: steps.jsonl and timings.jsonl."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

_BLOCK = 1 << 20


class JsonlWriter:
    """Appends one JSON object a line and flushes each.

    Without a run directory nothing is written. Above `most` bytes the older half goes: a pod's disk is
    small. 0: no limit.
    """

    def __init__(self, folder: Path | None, name: str, most: int = 0) -> None:
        self._path, self._most = None if folder is None else folder / name, most
        if self._path is not None and self._path.exists():
            _drop_torn_line(self._path)

    def append(self, value: Any) -> None:
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(value) + b"\n")
            if 0 < self._most < (size := self._path.stat().st_size):
                _drop_older_half(self._path, size)


def _drop_older_half(path: Path, size: int) -> None:
    """Keeps the whole lines of the newer half. The file is replaced at once: a reader has the one or the other."""
    kept = path.with_name(f"{path.name}.new")
    with path.open("rb") as old, kept.open("wb") as new:
        old.seek(size // 2)
        old.readline()
        shutil.copyfileobj(old, new, _BLOCK)
    kept.replace(path)


def _drop_torn_line(path: Path) -> None:
    """A killed writer may leave half a line behind the last line end. Reads from the file's end: timings are hundreds of MB."""
    with path.open("r+b") as file:
        stop = file.seek(0, os.SEEK_END)
        while stop:
            start = max(0, stop - _BLOCK)
            file.seek(start)
            if (found := file.read(stop - start).rfind(b"\n")) >= 0:
                file.truncate(start + found + 1)
                return
            stop = start
        file.truncate(0)
