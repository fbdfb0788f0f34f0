"""What the indexes of a share's blocks add up to, in few objects: a restart reads these and lists the indexes.

A record is named by the keys of its blocks, so by content, in the folder of its source. It counts for a block as long as
the index object that it is of is there with the size that it had. Another number of loaders makes other shares: what their
records lack is looked for in the others of the source.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from coxswain.index import BlockEntry, object_key
from coxswain.structs import UNDECODABLE, prepare
from coxswain_data.row_table import KEY, RowTable
from coxswain_link.store import REQUESTS_AT_ONCE, CorruptObject, NotFound, Store

BLOCKS = 50_000  # of a record
_COUNTS = struct.Struct("<5q")
Hashes = npt.NDArray[np.int64]


class Counted(msgspec.Struct, frozen=True, array_like=True):
    """What the index of a block adds up to, and the bytes of its object."""

    key: str  # an earlier release may have given it, with another ETag of a file
    etag: str
    samples: int
    rejected: int
    tokens: int
    shortest: int
    size: int


class StoredIndexes:
    """Which index objects a store has, by a list of each of their folders that is asked for."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._listed: dict[str, Hashes] = {}  # of each object's path and size, sorted, by folder: 8 bytes an object

    def holding(self, counted: Iterable[Counted]) -> Iterator[bool]:
        """Of each, whether its object is there with its size."""
        objects = [(object_key(c.key), c.size) for c in counted]
        new = sorted({_folder(path) for path, _ in objects} - self._listed.keys())
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            self._listed.update(zip(new, pool.map(self._list, new), strict=True))
        return (self._holds(*each) for each in objects)

    def _list(self, folder: str) -> Hashes:
        return np.sort(np.fromiter((hash((o.path, o.size)) for o in self.store.list(folder)), np.int64))

    def _holds(self, path: str, size: int) -> bool:
        found, wanted = self._listed[_folder(path)], hash((path, size))
        place = np.searchsorted(found, wanted)
        return bool(place < len(found) and found[place] == wanted)


class ShareRecords:
    """The records of a source in a store. `source`: what the records of all its shares have in common."""

    def __init__(self, stored: StoredIndexes, source: str) -> None:
        self.stored, self.store = stored, stored.store
        self.folder = f"index/shares/{hashlib.sha256(source.encode()).hexdigest()}/"

    def read(self, path: str) -> list[Counted]:
        """A torn record counts for nothing."""
        with suppress(NotFound, CorruptObject, *UNDECODABLE):
            return msgspec.json.decode(self.store.get(path), type=list[Counted])
        return []

    def elsewhere(self, entry: BlockEntry) -> Counted | None:
        """What any record of the source said of a block when it was first asked."""
        row = self._rows.get(_row_key(entry.key))
        return None if row is None else Counted(entry.key, entry.etag, *_COUNTS.unpack(row))

    @cached_property
    def _rows(self) -> RowTable:
        rows = RowTable(_COUNTS.size)
        for info in self.store.list(self.folder):
            for c in self.read(info.path):
                with suppress(ValueError, struct.error):  # of no record of ours
                    rows.add(_row_key(c.key), _COUNTS.pack(c.samples, c.rejected, c.tokens, c.shortest, c.size))
        return rows


class ShareRecord:
    """Up to `BLOCKS` blocks of a share, `named` by the keys that this release gives them, and what is known of each."""

    def __init__(self, records: ShareRecords, named: Sequence[BlockEntry]) -> None:
        self._records, self._named = records, named
        self._known: dict[str, Counted] = {}
        self._new: set[str] = set()
        counted = records.read(self._record_key)
        if len(counted) == len(named):
            self._add_held([(entry.key, c) for entry, c in zip(named, counted, strict=True)])
        else:
            found = [(entry.key, c) for entry in named if (c := records.elsewhere(entry)) is not None]
            self._new |= self._add_held(found)

    def _add_held(self, found: Sequence[tuple[str, Counted]]) -> set[str]:
        """Adds those whose index is there; returns their keys."""
        holding = self._records.stored.holding(c for _, c in found)
        held = {key: c for (key, c), holds in zip(found, holding, strict=True) if holds}
        self._known |= held
        return set(held)

    def __contains__(self, key: str) -> bool:
        return key in self._known

    @property
    def rejected(self) -> int:
        return sum(c.rejected for c in self._known.values())

    def forget(self) -> None:
        """For an error that names the places of what is rejected: these are in the indexes alone."""
        self._known.clear()

    def add(self, key: str, counted: Counted) -> None:
        self._known[key] = counted
        self._new.add(key)

    def blocks(self) -> Iterator[BlockEntry]:
        """All blocks, in order, each with the key of its index."""
        for entry in self._named:
            c = self._known[entry.key]
            counts = {"samples": c.samples, "rejected": c.rejected, "tokens": c.tokens, "shortest": c.shortest}
            yield replace(entry, key=c.key, etag=c.etag, **counts)

    def save(self) -> None:
        """Keeps what the store has no record of, for the next start."""
        if self._new:
            data = msgspec.json.encode([self._known[entry.key] for entry in self._named])
            self._records.store.put(self._record_key, data)

    @cached_property
    def _record_key(self) -> str:
        keys = hashlib.sha256(msgspec.json.encode([entry.key for entry in self._named])).hexdigest()
        return f"{self._records.folder}{keys}.json"


def _row_key(key: str) -> bytes:
    return bytes.fromhex(key)[:KEY]


def _folder(path: str) -> str:
    return path[: path.rindex("/") + 1]


prepare(__name__)
