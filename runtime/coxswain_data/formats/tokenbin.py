"""TokenBin: tokenised documents in Megatron-LM's format: ids in `x.bin`, documents in `x.idx`.

The index file, little-endian: 9 bytes "MMIDIDX\\0\\0", version 1 (u64), the ids' type (u8), number
of sequences (u64), number of document bounds (u64); then per sequence its length (i32) and its byte
in `.bin` (i64); then the bounds, in sequences (i64).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coxswain.errors import Refused
from coxswain_data.formats.base import Extent, Ids, Sample
from coxswain_data.formats.compression import read_whole
from coxswain_data.formats.object_reader import ObjectReader
from coxswain_link.spool import Data

TOKENS, INDEX = ".bin", ".idx"

_MAGIC = b"MMIDIDX\0\0"
_HEAD = struct.Struct("<9sQBQQ")
_TYPES = {1: "<u1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""By the code in the index file. Signed bytes and floats cannot be token ids."""


class Table(NamedTuple):
    """Offset of each document in `.bin`, and the end of the last (bytes)."""

    dtype: np.dtype[Any]
    bounds: NDArray[np.int64]


class TokenBinBlock:
    """Consecutive documents. `at` is a byte in the block."""

    def __init__(self, data: Data, bounds: NDArray[np.int64], dtype: np.dtype[Any]) -> None:
        self._data, self._bounds, self._dtype, self.nbytes = data, bounds, dtype, len(data)

    def samples(self) -> Iterator[Sample]:
        for start, stop in pairwise(self._bounds):
            yield Sample(int(start), self._ids(int(start), int(stop)))

    def text(self, at: int) -> Ids:
        # Of several documents at one offset, the one with tokens.
        document = int(np.searchsorted(self._bounds, at, side="right")) - 1
        return self._ids(at, int(self._bounds[document + 1]))

    def _ids(self, start: int, stop: int) -> Ids:
        return np.frombuffer(self._data, self._dtype, (stop - start) // self._dtype.itemsize, start)


class TokenBinObject:
    """One pair of files. Raises Refused (ObjectUnreadable, ObjectTooLarge) by name."""

    def __init__(self, reader: ObjectReader, text_field: str) -> None:
        self._reader = reader
        index = reader.companion(companion(reader.path))
        self._where, most = index.where, reader.sizes.tokenbin_index
        if index.size > most:
            raise Refused("ObjectTooLarge", f"{self._where} is larger than {most >> 20} MiB; write several pairs")
        self._table = self._parsed(read_whole(index, most))

    def extents(self) -> list[Extent]:
        """One block a range: longer for a longer document, none where no document begins."""
        bounds = self._table.bounds
        firsts = np.unique(
            np.searchsorted(bounds[:-1], np.arange(0, int(bounds[-1]), self._reader.sizes.tokenbin_block))
        )
        cuts = [*bounds[firsts[firsts < len(bounds) - 1]].tolist(), int(bounds[-1])]
        return [Extent(i, a, b - a) for i, (a, b) in enumerate(pairwise(cuts))]

    def read(self, extent: Extent) -> TokenBinBlock:
        stop, bounds = extent.offset + extent.size, self._table.bounds
        mine = bounds[np.searchsorted(bounds, extent.offset) : np.searchsorted(bounds, stop, side="right")]
        if extent.size > (most := self._reader.sizes.document):
            raise Refused(
                "ObjectTooLarge",
                f"{self._reader.where}: the document at byte {extent.offset} is larger than {most >> 20} MiB; split it",
            )
        data = self._reader.spool.hold([self._reader.range(extent.offset, stop)])
        return TokenBinBlock(data, mine - extent.offset, self._table.dtype)

    def _parsed(self, data: Data) -> Table:
        try:
            magic, version, code, sequences, documents = _HEAD.unpack_from(data)
            if (magic, version) != (_MAGIC, 1) or code not in _TYPES:
                raise ValueError(f"it begins with {magic!r}, version {version}, type {code}")
            dtype = np.dtype(_TYPES[code])
            sizes = np.frombuffer(data, "<i4", sequences, _HEAD.size)
            starts = np.frombuffer(data, "<i8", sequences, _HEAD.size + sizes.nbytes)
            bounds = np.frombuffer(data, "<i8", documents, _HEAD.size + sizes.nbytes + starts.nbytes)
            return Table(dtype, self._checked(sizes, starts, bounds, dtype.itemsize))
        except (struct.error, ValueError, OverflowError) as error:
            raise self._unreadable(str(error)) from error

    def _checked(
        self, sizes: NDArray[np.int32], starts: NDArray[np.int64], bounds: NDArray[np.int64], width: int
    ) -> NDArray[np.int64]:
        """Offsets of documents. Raises ValueError where the two files do not match."""
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64) * width])
        if (sizes < 0).any() or not np.array_equal(edges[:-1], starts):
            raise ValueError("its sequences are not contiguous")
        if not len(bounds) or bounds[0] != 0 or bounds[-1] != len(sizes) or (np.diff(bounds) < 0).any():
            raise ValueError("its documents do not cover its sequences")
        if edges[-1] != self._reader.size:
            raise ValueError(f"it describes {edges[-1]} bytes, and {self._reader.path} has {self._reader.size}")
        return edges[bounds]

    def _unreadable(self, why: str) -> Refused:
        return Refused(
            "ObjectUnreadable",
            f"{self._where} is not an index of a .bin as Megatron-LM writes it ({why}); write the pair again, or exclude it "
            "with `include`",
        )


def companion(path: str) -> str:
    """The index file of a `.bin`."""
    return path.removesuffix(TOKENS) + INDEX


def tokens_of(path: str) -> str:
    """The `.bin` of an index file."""
    return path.removesuffix(INDEX) + TOKENS
