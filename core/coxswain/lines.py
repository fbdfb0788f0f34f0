"""Files of lines, read from their end: those of a long run are hundreds of MB."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 1 << 16  # bytes


def lines_from_end(path: Path, block: int = _BLOCK) -> Iterator[bytes]:
    """Complete lines without their ends, the last one first."""
    begun, whole = b"", False
    for _, data in _blocks_from_end(path, block):
        begun, *lines = (data + begun).split(b"\n")
        if lines and not whole:
            lines.pop()  # what stands behind the last line end: torn, or empty
            whole = True
        yield from reversed(lines)
    if whole:
        yield begun


def end_of_lines(path: Path, block: int = _BLOCK) -> int:
    """Bytes up to the end of the last complete line: what stands behind them is torn. 0: no line is complete."""
    for start, data in _blocks_from_end(path, block):
        if (found := data.rfind(b"\n")) >= 0:
            return start + found + 1
    return 0


def drop_torn_line(path: Path) -> None:
    """A killed writer, or a full disk, may leave a part of a line: the next one would be joined to it."""
    if path.exists():
        os.truncate(path, end_of_lines(path))


def _blocks_from_end(path: Path, block: int) -> Iterator[tuple[int, bytes]]:
    """Where each block begins, and its bytes."""
    with path.open("rb") as file:
        start = file.seek(0, os.SEEK_END)
        while start:
            stop, start = start, max(0, start - block)
            file.seek(start)
            yield start, file.read(stop - start)
