"""The identity of a file: a digest of its content. Its time and inode only say when to read it again."""

from __future__ import annotations

import hashlib
from contextlib import suppress

import msgspec

from coxswain_link.store import NotFound, ObjectInfo, Store

_PIECE = 8 << 20  # bytes read at once


class Known(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was when it was read: its ETag (size, time and inode), and its digest."""

    etag: str
    digest: str


class FileIdentities:
    """Digests of a source's files. `index` keeps them for other processes and for the next start."""

    def __init__(self, files: Store, index: Store | None) -> None:
        self._files, self._index = files, index
        self._key = f"index/files/{hashlib.sha256(files.uri.encode()).hexdigest()}.json"
        self._known: dict[str, Known] | None = None
        self._unsaved = False

    def of(self, info: ObjectInfo) -> ObjectInfo:
        """The file with the digest of its content as its ETag; reads it where it may have changed."""
        found = self._load().get(info.path)
        if found is None or found.etag != info.etag:
            found = self._load()[info.path] = Known(info.etag, self._digest(info))
            self._unsaved = True
        return ObjectInfo(info.path, info.size, found.digest)

    def save(self) -> None:
        if self._index is not None and self._unsaved:
            self._index.put(self._key, msgspec.json.encode(self._load()))
            self._unsaved = False

    def _load(self) -> dict[str, Known]:
        if self._known is None:
            self._known = {}
            if self._index is not None:
                with suppress(NotFound, msgspec.DecodeError):  # a torn one is made again
                    self._known = msgspec.json.decode(self._index.get(self._key), type=dict[str, Known])
        return self._known

    def _digest(self, info: ObjectInfo) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for start in range(0, info.size, _PIECE):
            digest.update(self._files.get_range(info.path, start, min(start + _PIECE, info.size)))
        return digest.hexdigest()
