"""The identity of a file: a digest of its content. Its time and inode only say when to read it again."""

from __future__ import annotations

import hashlib
from contextlib import suppress

import msgspec

from coxswain.structs import UNDECODABLE, prepare
from coxswain_data.formats.object_reader import ObjectReader
from coxswain_link.store import CorruptObject, NotFound, Store


class Known(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was when it was read: its ETag (size, time and inode), and its digest."""

    etag: str
    digest: str


class FileIdentities:
    """Digests of a source's files. `index`, once it is set, keeps them for other processes and the next start."""

    def __init__(self, uri: str) -> None:
        self.index: Store | None = None
        self._key = f"index/files/{hashlib.sha256(uri.encode()).hexdigest()}.json"
        self._known: dict[str, Known] | None = None
        self._unsaved = False

    def of(self, file: ObjectReader) -> str:
        """The digest of a file; reads it where it may have changed."""
        found = self._load().get(file.path)
        if found is None or found.etag != file.etag:
            found = self._load()[file.path] = Known(file.etag, _digest(file))
            self._unsaved = True
        return found.digest

    def save(self) -> None:
        if self.index is not None and self._unsaved:
            self.index.put(self._key, msgspec.json.encode(self._load()))
            self._unsaved = False

    def _load(self) -> dict[str, Known]:
        if self._known is None:
            self._known = {}
            if self.index is not None:
                with suppress(NotFound, CorruptObject, *UNDECODABLE):  # a torn one is made again
                    self._known = msgspec.json.decode(self.index.get(self._key), type=dict[str, Known])
        return self._known


def _digest(file: ObjectReader) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for piece in file.pieces():
        digest.update(piece)
    return digest.hexdigest()


prepare(__name__)
