"""An object of a store as a seekable file that reads only the requested ranges."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from coxswain_link.store import ObjectInfo, Store

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class RangeFile(io.RawIOBase):
    """Each read is one ranged request: wrap it in a buffer for small reads."""

    def __init__(self, store: Store, info: ObjectInfo) -> None:
        self._store, self._info, self._at = store, info, 0

    def read(self, size: int = -1) -> bytes:
        stop = self._info.size if size < 0 else min(self._at + size, self._info.size)
        data = self._store.get_range(self._info.path, self._at, stop) if stop > self._at else b""
        self._at += len(data)
        return data

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._info.size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
