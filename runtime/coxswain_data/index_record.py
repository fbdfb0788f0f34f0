"""What the indexes of a share's blocks add up to, in few objects: a restart reads these and lists the indexes.

A record is named by the keys of its blocks, so by content, in the folder of its source. It counts for a block as long as
the index object that it is of is there with the size that it had. Another number of loaders makes other shares: what their
records lack is looked for in the others of the source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from coxswain.index import BlockEntry, object_key
from coxswain.structs import UNDECODABLE, prepare
from coxswain_link.store import REQUESTS_AT_ONCE, CorruptObject, NotFound, Store

BLOCKS = 50_000  # of a record
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


class ShareRecord:
    """The blocks of a share, `named` by the keys that this release gives them, and what is known of each."""

    def __init__(self, stored: StoredIndexes, named: Sequence[BlockEntry], source: str) -> None:
        """`source`: what the records of all its shares have in common."""
        self._store, self._folder = stored.store, f"index/shares/{hashlib.sha256(source.encode()).hexdigest()}/"
        self._parts = [named[start : start + BLOCKS] for start in range(0, len(named), BLOCKS)]
        self._known: dict[str, Counted] = {}
        self._new: set[str] = set()
        self._read(stored)

    def _read(self, stored: StoredIndexes) -> None:
        without: set[str] = set()  # keys of blocks that no record of this share has
        for part in self._parts:
            counted = self._recorded(self._record_key(part))
            if len(counted) == len(part):
                self._add_held(stored, [(entry.key, c) for entry, c in zip(part, counted, strict=True)])
            else:
                without |= {entry.key for entry in part}
        for path in [info.path for info in self._store.list(self._folder)] if without else ():
            found = [(c.key, c) for c in self._recorded(path) if c.key in without]
            self._new |= self._add_held(stored, found)

    def _recorded(self, path: str) -> list[Counted]:
        """A torn record counts for nothing."""
        with suppress(NotFound, CorruptObject, *UNDECODABLE):
            return msgspec.json.decode(self._store.get(path), type=list[Counted])
        return []

    def _add_held(self, stored: StoredIndexes, found: Sequence[tuple[str, Counted]]) -> set[str]:
        """Adds those whose index is there; returns their keys."""
        held = {key: c for (key, c), holds in zip(found, stored.holding(c for _, c in found), strict=True) if holds}
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
        for entry in chain.from_iterable(self._parts):
            c = self._known[entry.key]
            counts = {"samples": c.samples, "rejected": c.rejected, "tokens": c.tokens, "shortest": c.shortest}
            yield replace(entry, key=c.key, etag=c.etag, **counts)

    def save(self) -> None:
        """Keeps what the store has no record of, for the next start."""
        for part in self._parts:
            if any(entry.key in self._new for entry in part):
                self._store.put(self._record_key(part), msgspec.json.encode([self._known[entry.key] for entry in part]))

    def _record_key(self, part: Iterable[BlockEntry]) -> str:
        keys = hashlib.sha256(msgspec.json.encode([entry.key for entry in part])).hexdigest()
        return f"{self._folder}{keys}.json"


def _folder(path: str) -> str:
    return path[: path.rindex("/") + 1]


prepare(__name__)
