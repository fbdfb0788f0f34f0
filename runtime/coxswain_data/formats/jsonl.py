"""Jsonl: a sample per line. Plain files are cut into byte ranges; .gz and .zst are one block each.

A block of a plain file owns the lines that *start* in its range, as input splits do in MapReduce.
So listing a file reads nothing of it, and the reader of a block reads to the end of its last line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from coxswain.errors import Refused
from coxswain_data.formats.base import MAX_WHOLE, Extent, Sample, decoded
from coxswain_data.formats.compression import is_compressed, read_whole
from coxswain_link.store import ObjectInfo, Store

RANGE = 2 << 20  # bytes of a block
_AHEAD = 256 << 10  # bytes read at once behind the end of a block
_BOM = b"\xef\xbb\xbf"


class JsonlBlock:
    """Whole lines; `first` is the offset of the first one in the block."""

    def __init__(self, data: bytes, first: int, line: type[msgspec.Struct]) -> None:
        self._data, self._first, self.nbytes = data, first, len(data)
        self._decoder = msgspec.json.Decoder(line)

    def samples(self) -> Iterator[Sample]:
        """Skips blank lines."""
        start = 0
        while start < len(self._data):
            stop = self._stop(start)
            if self._data[start:stop].strip():
                at = self._first + start
                yield Sample(at, decoded(lambda at=at: self.text(at)))  # type: ignore[misc]
            start = stop + 1

    def text(self, at: int) -> str:
        start = at - self._first
        line = self._data[start : self._stop(start)].removeprefix(_BOM)
        try:
            return self._decoded(line)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error

    def _decoded(self, line: bytes) -> str:
        """Takes what Python's own writer writes into other fields, NaN and Infinity. Raises ValueError, RecursionError."""
        try:
            decoded_line: Any = self._decoder.decode(line)
        except msgspec.DecodeError:
            decoded_line = msgspec.convert(json.loads(line.decode()), self._decoder.type)
            decoded_line.text.encode()  # Python also takes half of a surrogate pair for text
        return str(decoded_line.text)

    def _stop(self, start: int) -> int:
        end = self._data.find(b"\n", start)
        return len(self._data) if end < 0 else end


class JsonlObject:
    def __init__(self, store: Store, info: ObjectInfo, text_field: str) -> None:
        self._store, self._info = store, info
        self._line = msgspec.defstruct("Line", [("text", str, msgspec.field(name=text_field))])

    def extents(self) -> list[Extent]:
        size = self._info.size
        if is_compressed(self._info.path):
            return [Extent(0, 0, size)]
        return [Extent(i, start, min(RANGE, size - start)) for i, start in enumerate(range(0, size, RANGE))]

    def read(self, extent: Extent) -> JsonlBlock:
        if is_compressed(self._info.path):
            return JsonlBlock(read_whole(self._store, self._info), 0, self._line)
        # The byte before the range shows whether a line starts at its first byte.
        begin = max(0, extent.offset - 1)
        data = self._bytes(begin, extent.offset + extent.size)
        first = data.find(b"\n") + 1 if extent.offset else 0
        if extent.offset and (first == 0 or first == len(data)):
            return JsonlBlock(b"", 0, self._line)
        return JsonlBlock(self._complete(data[first:], extent), begin + first - extent.offset, self._line)

    def _complete(self, data: bytes, extent: Extent) -> bytes:
        """Adds the rest of the last line, which may end after the range."""
        end = extent.offset + extent.size
        parts = [data]
        while not parts[-1].endswith(b"\n") and end < self._info.size:
            self._limit(sum(map(len, parts)), extent)
            more = self._bytes(end, end + _AHEAD)
            end += len(more)
            stop = more.find(b"\n")
            parts.append(more if stop < 0 else more[: stop + 1])
        return b"".join(parts)

    def _bytes(self, start: int, stop: int) -> bytes:
        return self._store.get_range(self._info.path, start, min(stop, self._info.size))

    def _limit(self, size: int, extent: Extent) -> None:
        if size > MAX_WHOLE:
            raise Refused(
                "ObjectTooLarge",
                f"{self._store.uri.rstrip('/')}/{self._info.path}: the line in the range from byte {extent.offset} on is "
                f"longer than {MAX_WHOLE >> 20} MiB; one line must be one document",
            )
