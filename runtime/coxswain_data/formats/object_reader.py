"""One object of a source: reads of it give the content that was listed, or fail by name."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import IO, NamedTuple

from coxswain.errors import Refused
from coxswain_data.formats.ranges import RangeFile
from coxswain_link.spool import Spool
from coxswain_link.store import NotFound, ObjectChanged, ObjectInfo, Store

_PIECE = 8 << 20  # bytes of one read of a whole object


class Sizes(NamedTuple):
    """Bytes. Where a block begins decides the index, so these stay as they are."""

    document: int = 256 << 20  # the largest, since it is held in memory
    unpacked: int = 16 << 30  # the largest packed object or row group, since it is held on local disk
    jsonl_block: int = 2 << 20
    jsonl_ahead: int = 256 << 10  # read at once behind the end of a block
    tar_whole: int = 16 << 20  # of a larger plain archive, only the used members are read
    tokenbin_block: int = 4 << 20
    tokenbin_index: int = 2 << 30  # some 100 million documents


@dataclass(frozen=True)
class ObjectReader:
    """`changed` makes the error for content that is not the listed one: (path, how). `same` gives the reader of the object as it
    is now, where that has the content of this one's all the same."""

    store: Store
    info: ObjectInfo
    spool: Spool
    changed: Callable[[str, str], Refused]
    sizes: Sizes
    same: Callable[[ObjectReader], ObjectReader | None] = lambda reader: None

    @property
    def path(self) -> str:
        return self.info.path

    @property
    def etag(self) -> str:
        """Its own: that of its companion follows in `info`."""
        return self.info.etag.partition(" ")[0]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.info.size

    @property
    def where(self) -> str:
        """For people."""
        return f"{self.store.uri.rstrip('/')}/{self.info.path}"

    def range(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop), as far as there are any by the listing: fewer than those are a change."""
        stop = max(start, min(stop, self.size))
        try:
            data = self._bytes(start, stop)
        except NotFound as error:
            raise self.changed(self.path, "was listed and is gone") from error
        if len(data) != stop - start:
            raise self.changed(self.path, f"was listed with {self.size} bytes and ends at byte {start + len(data)}")
        return data

    def _bytes(self, start: int, stop: int) -> bytes:
        try:
            return self.store.get_range(self.path, start, stop, self.etag)
        except ObjectChanged as error:
            if (now := self.same(self)) is None:
                raise self.changed(self.path, "was replaced since it was listed") from error
            return now.range(start, stop)

    def file(self, buffer: int = _PIECE) -> IO[bytes]:
        """The object as a seekable file; `buffer`: bytes of one read."""
        return io.BufferedReader(RangeFile(self.range, self.size), buffer)

    def pieces(self) -> Iterator[bytes]:
        """All bytes, in order."""
        for at in range(0, self.size, _PIECE):
            yield self.range(at, at + _PIECE)

    def companion(self, path: str) -> ObjectReader:
        """The object that belongs to this one: its etag follows ours after a space."""
        found, listed = self.store.head(path), self.info.etag.partition(" ")[2]
        return replace(self, info=ObjectInfo(path, found.size, listed or found.etag))
