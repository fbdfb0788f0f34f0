"""What is known of each of millions of files or blocks, without an object for each."""

from __future__ import annotations

from collections import defaultdict

KEY = 16  # bytes; of a digest, so keys are spread evenly
_PREFIX = 2  # bytes of a key that choose its bucket: of five million rows one has 76


class RowTable:
    """Rows of `width` bytes by a key of `KEY` bytes, some 1.1 x (width + KEY) bytes each. The first row of a key stays."""

    def __init__(self, width: int) -> None:
        self._row = KEY + width
        self._buckets: defaultdict[bytes, bytearray] = defaultdict(bytearray)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, key: bytes, row: bytes) -> None:
        if len(key) != KEY or len(row) != self._row - KEY:
            raise ValueError(f"key of {len(key)} and row of {len(row)} bytes: allowed are {KEY} and {self._row - KEY}")
        if self.get(key) is None:
            self._buckets[key[:_PREFIX]] += key + row
            self._length += 1

    def get(self, key: bytes) -> bytes | None:
        bucket = self._buckets.get(key[:_PREFIX], b"")
        at = bucket.find(key)
        while at >= 0 and at % self._row:  # the key's bytes within a row
            at = bucket.find(key, at + 1)
        return None if at < 0 else bytes(bucket[at + KEY : at + self._row])
