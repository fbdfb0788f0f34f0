"""JSON lines in the run directory: steps.jsonl and timings.jsonl."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from coxswain.lines import drop_torn_line

log = logging.getLogger(__name__)

_BLOCK = 1 << 20


class JsonlWriter:
    """Appends one JSON object a line and flushes each.

    Without a run directory nothing is written. Above `most` bytes the older half goes: a pod's disk is
    small. 0: no limit.
    """

    def __init__(self, folder: Path | None, name: str, most: int = 0) -> None:
        self._path, self.most = None if folder is None else folder / name, most
        if self._path is not None:
            drop_torn_line(self._path)
            _draft(self._path).unlink(missing_ok=True)  # of a process that was killed over it

    def append(self, value: Any) -> None:
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(value) + b"\n")
            if 0 < self.most < (size := self._path.stat().st_size):
                self._shorten(self._path, size)

    def _shorten(self, path: Path, size: int) -> None:
        """Where there is no room for it, the file grows on: that alone ends no training."""
        try:
            _drop_older_half(path, size)
        except OSError as error:
            self.most = size + size // 8  # not at each line again
            log.warning("%s keeps its %d bytes: its newer half cannot be written: %s", path, size, error)


def _drop_older_half(path: Path, size: int) -> None:
    """Keeps the whole lines of the newer half. The file is replaced at once: a reader has the one or the other."""
    kept = _draft(path)
    try:
        with path.open("rb") as old, kept.open("wb") as new:
            old.seek(size // 2)
            old.readline()
            shutil.copyfileobj(old, new, _BLOCK)
            new.flush()
            os.fsync(new.fileno())  # else a power cut may leave the name with an empty file
        kept.replace(path)
    finally:
        kept.unlink(missing_ok=True)


def _draft(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")
