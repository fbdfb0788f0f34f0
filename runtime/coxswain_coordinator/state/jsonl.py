"""JSON lines in the run directory: steps.jsonl and timings.jsonl."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec

from coxswain.lines import drop_torn_line

_BLOCK = 1 << 20


class JsonlWriter:
    """Appends one JSON object a line and flushes each.

    Without a run directory nothing is written. Above `most` bytes the older half goes: a pod's disk is
    small. 0: no limit.
    """

    def __init__(self, folder: Path | None, name: str, most: int = 0) -> None:
        self._path, self._most = None if folder is None else folder / name, most
        if self._path is not None:
            drop_torn_line(self._path)

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
