"""The identity of a file: a digest of its content. Its time and inode only say when to read it again."""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

import msgspec

from coxswain.structs import UNDECODABLE, prepare
from coxswain_data.formats.object_reader import ObjectReader
from coxswain_data.row_table import KEY, RowTable
from coxswain_link.store import CorruptObject, NotFound, Store

log = logging.getLogger(__name__)

_SECONDS = 30.0
"""Between two saves of digests, and between two looks at those of other processes."""

_DIGEST = 16  # bytes

OF_AN_OBJECT = 50_000
"""Digests of an object, some 6 MB: a save writes the last object again, and a look reads it."""


class Known(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was when it was read: its ETag (size, time and inode), and its digest."""

    etag: str
    digest: str


class FileIdentities:
    """Digests of a source's files. `index`, once it is set, keeps them for other processes and the next start.

    Each process writes objects of its own with the digests that it has made, one after the other, and reads those of all. A
    digest counts for a path with an ETag, so no two objects contradict each other, and none is overwritten by another process.
    """

    def __init__(self, uri: str, clock: Callable[[], float] = time.monotonic, of_an_object: int = OF_AN_OBJECT) -> None:
        self.index: Store | None = None
        self._uri, self._clock, self._of_an_object = uri, clock, of_an_object
        self._folder = f"index/files/{hashlib.sha256(uri.encode()).hexdigest()}"
        self._own_key = self._new_key()
        self._known = RowTable(_DIGEST)  # by path and ETag
        self._made: dict[str, Known] = {}  # by this process, by path, in the object that is written now
        self._unsaved = False
        self._looked: dict[str, str] = {}  # the ETags of the objects that have been read
        self._look_at, self._save_at = -float("inf"), clock() + _SECONDS

    def of(self, file: ObjectReader) -> str:
        """The digest of a file; reads it where it may have changed and no other process has read it meanwhile."""
        key = _key(file.path, file.etag)
        found = self._known.get(key)
        if found is None:
            self._look()
            found = self._known.get(key) or self._made_of(file, key)
        return found.hex()

    def known(self, file: ObjectReader) -> str:
        """The digest that a file is known to have; empty: it has not been read."""
        return (self._known.get(_key(file.path, file.etag)) or b"").hex()

    def _made_of(self, file: ObjectReader, key: bytes) -> bytes:
        digest = _digest(file)
        self._made[file.path], self._unsaved = Known(file.etag, digest.hex()), True
        self._known.add(key, digest)
        if self._clock() >= self._save_at or len(self._made) >= self._of_an_object:
            self.save()
        return digest

    def save(self) -> None:
        """Keeps what this process has digested. Otherwise that is done every `_SECONDS`."""
        if self.index is None or not self._unsaved:
            return
        self.index.put(self._own_key, msgspec.json.encode(dict(self._made)))
        self._unsaved, self._save_at = False, self._clock() + _SECONDS
        log.info("%d files of %s are digested", len(self._known), self._uri)
        if len(self._made) >= self._of_an_object:
            self._made, self._own_key = {}, self._new_key()

    def _new_key(self) -> str:
        return f"{self._folder}/{uuid.uuid4().hex}.json"

    def _look(self) -> None:
        """Reads what other processes have saved since the last look, and earlier ones. Torn objects count for nothing."""
        if self.index is None or self._clock() < self._look_at:
            return
        old = f"{self._folder}.json"  # of earlier releases
        found = {info.path: info.etag for info in self.index.list(f"{self._folder}/")} | {old: ""}
        for path in (path for path, etag in found.items() if self._looked.get(path) != etag):
            with suppress(NotFound, CorruptObject, ValueError, *UNDECODABLE):
                for file, known in msgspec.json.decode(self.index.get(path), type=dict[str, Known]).items():
                    self._known.add(_key(file, known.etag), bytes.fromhex(known.digest))
        self._looked, self._look_at = found, self._clock() + _SECONDS


def _key(path: str, etag: str) -> bytes:
    return hashlib.blake2b(f"{path}\0{etag}".encode(), digest_size=KEY).digest()


def _digest(file: ObjectReader) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for piece in file.pieces():
        digest.update(piece)
    return digest.digest()


prepare(__name__)
