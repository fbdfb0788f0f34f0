"""Ranged reads as a seekable file."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class RangeFile(io.RawIOBase):
    """`fetch(start, stop)` is one ranged request for each read: wrap it in a buffer for small reads."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch, self._size, self._at = fetch, size, 0

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._at + size, self._size)
        data = self._fetch(self._at, stop) if stop > self._at else b""
        self._at += len(data)
        return data

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
