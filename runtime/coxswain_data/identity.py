"""The identity of a file: a digest of its content. Its time and inode only say when to read it again."""

from __future__ import annotations

import hashlib
from contextlib import suppress

import msgspec

from coxswain_link.store import NotFound, Store

_PIECE = 8 << 20  # bytes read at once


class Known(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was when it was read: its ETag (size, time and inode), and its digest."""

    etag: str
    digest: str


class FileIdentities:
    """Digests of a source's files. `index`, once it is set, keeps them for other processes and the next start."""

    def __init__(self, files: Store) -> None:
        self._files = files
        self.index: Store | None = None
        self._key = f"index/files/{hashlib.sha256(files.uri.encode()).hexdigest()}.json"
        self._known: dict[str, Known] | None = None
        self._unsaved = False

    def of(self, path: str, etag: str) -> str:
        """The digest of the file with this ETag; reads the file where it may have changed."""
        found = self._load().get(path)
        if found is None or found.etag != etag:
            found = self._load()[path] = Known(etag, self._digest(path, etag))
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
                with suppress(NotFound, msgspec.DecodeError):  # a torn one is made again
                    self._known = msgspec.json.decode(self.index.get(self._key), type=dict[str, Known])
        return self._known

    def _digest(self, path: str, etag: str) -> str:
        """Raises ObjectChanged when the file is replaced meanwhile."""
        digest, size = hashlib.blake2b(digest_size=16), self._files.head(path).size
        for start in range(0, size, _PIECE):
            digest.update(self._files.get_range(path, start, min(start + _PIECE, size), etag))
        return digest.hexdigest()
