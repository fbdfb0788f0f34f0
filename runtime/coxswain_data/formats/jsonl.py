"""Jsonl: a sample per line. Plain files are cut into byte ranges; .gz and .zst are one block each.

A block of a plain file owns the lines that *start* in its range, as input splits do in MapReduce.
So listing a file reads nothing of it, and the reader of a block reads to the end of its last line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec

from coxswain.errors import Refused
from coxswain_data.formats.base import Extent, Sample, decoded
from coxswain_data.formats.compression import check_not_packed, is_compressed, read_whole
from coxswain_data.formats.object_reader import ObjectReader
from coxswain_link.spool import Data

_BOM = b"\xef\xbb\xbf"
_FOREIGN = (b"NaN", b"Infinity", b"\\ud", b"\\uD")  # numbers that JSON has not, and halves of surrogate pairs


class JsonlBlock:
    """Whole lines; `first` is the offset of the first one in the block. `too_long` takes a line's offset in the block."""

    def __init__(self, data: Data, first: int, field: str, most: int, too_long: Callable[[int], Refused]) -> None:
        self._data, self._first, self.nbytes, self._field = data, first, len(data), field
        self._decoder, self._most, self._too_long = _decoder(field), most, too_long

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
        try:
            decoded_line: Any = self._decoder.decode(line)
        except msgspec.DecodeError as error:
            return _lenient(line, self._field, error)
        return str(decoded_line.text)

    def _stop(self, start: int) -> int:
        end = self._data.find(b"\n", start)
        stop = len(self._data) if end < 0 else end
        if stop - start > self._most:  # before it is copied: a packed object may be one line of gigabytes
            raise self._too_long(self._first + start)
        return stop


class JsonlObject:
    def __init__(self, reader: ObjectReader, text_field: str) -> None:
        self._reader, self._sizes = reader, reader.sizes
        self._field = text_field

    def extents(self) -> list[Extent]:
        size, step = self._reader.size, self._sizes.jsonl_block
        if is_compressed(self._reader.path):
            return [Extent(0, 0, size)]
        return [Extent(i, start, min(step, size - start)) for i, start in enumerate(range(0, size, step))]

    def read(self, extent: Extent) -> JsonlBlock:
        if is_compressed(self._reader.path):
            return self._block(read_whole(self._reader, self._sizes.unpacked), 0, extent)
        # The byte before the range shows whether a line starts at its first byte.
        begin = max(0, extent.offset - 1)
        data = self._reader.range(begin, extent.offset + extent.size)
        if not extent.offset:
            check_not_packed(self._reader, data)
        first = data.find(b"\n") + 1 if extent.offset else 0
        if extent.offset and (first == 0 or first == len(data)):
            return self._block(b"", 0, extent)
        lines = self._reader.spool.hold(self._complete(data[first:], extent))
        return self._block(lines, begin + first - extent.offset, extent)

    def _block(self, lines: Data, first: int, extent: Extent) -> JsonlBlock:
        return JsonlBlock(
            lines, first, self._field, self._sizes.document, lambda at: self._too_long(f"at byte {extent.offset + at}")
        )

    def _complete(self, data: bytes, extent: Extent) -> list[bytes]:
        """Adds the rest of the last line, which may end after the range."""
        end = extent.offset + extent.size
        parts = [data]
        while not parts[-1].endswith(b"\n") and end < self._reader.size:
            self._limit(sum(map(len, parts)), extent)
            more = self._reader.range(end, end + self._sizes.jsonl_ahead)
            end += len(more)
            stop = more.find(b"\n")
            parts.append(more if stop < 0 else more[: stop + 1])
        return parts

    def _limit(self, size: int, extent: Extent) -> None:
        if size > self._sizes.document:
            raise self._too_long(f"in the range from byte {extent.offset} on")

    def _too_long(self, place: str) -> Refused:
        return Refused(
            "ObjectTooLarge",
            f"{self._reader.where}: the line {place} is longer than {self._sizes.document >> 20} MiB; one line must be one "
            "document",
        )


@cache
def _decoder(field: str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(msgspec.defstruct("Line", [("text", str, msgspec.field(name=field))]))


def _lenient(line: bytes, field: str, fault: msgspec.DecodeError) -> str:
    """The text of a line with NaN, Infinity or half a surrogate pair in it: Python writes them, strict decoders refuse them.

    `fault`: of the strict decoder.
    """
    if not any(word in line for word in _FOREIGN):
        raise fault
    found = json.loads(line)
    text = found.get(field) if isinstance(found, dict) else None
    if not isinstance(text, str):
        raise ValueError(f"{field} is no string")
    text.encode()  # raises for half a surrogate pair, which the strict decoder refuses too
    return text
