"""The files of a folder as objects, whatever their names: obstore neither lists nor reads all of them.

It writes them, beside each a staging file `NAME#1` for a moment: so it takes no file of such a name for an object.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from coxswain_link.object_info import Listing, ObjectInfo
from coxswain_link.store_faults import ObjectChanged, Unreadable

_Folder = tuple[int, int]
"""Device and inode: what a folder is, whatever links lead to it."""


class Files:
    """Raises OSError as the system does, Refused."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, key: str, start: int = 0, stop: int | None = None, etag: str = "") -> bytes:
        """Bytes [start, stop) of the file with this etag, or of any."""
        with self._path(key).open("rb") as file:
            found = os.fstat(file.fileno())
            if etag and _etag(found) != etag:
                raise ObjectChanged(str(self._path(key)))
            file.seek(start)
            return file.read(max(0, (found.st_size if stop is None else min(stop, found.st_size)) - start))

    def head(self, key: str) -> ObjectInfo:
        found = self._path(key).stat()
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(key)
        return ObjectInfo(key, found.st_size, _etag(found))

    def list(self, wanted: Callable[[str], object]) -> Listing:
        """All files, by path. Raises Refused for a wanted one that cannot be read."""
        return sorted(self._below("", (), wanted))

    def _below(self, folder: str, above: tuple[_Folder, ...], wanted: Callable[[str], object]) -> Iterator[ObjectInfo]:
        try:
            here = _identity((self._folder / folder).stat())
            if here in above:
                return  # a link to a folder above it: its files are listed there
            with os.scandir(self._folder / folder) as entries:
                found = list(entries)
        except FileNotFoundError:
            if not folder:
                raise
            return  # deleted since the folder above it was read
        for entry in found:
            key = f"{folder}/{entry.name}" if folder else entry.name
            if _is_folder(entry):
                yield from self._below(key, (*above, here), wanted)
            elif (info := self._listed(entry, key, wanted)) is not None:
                yield info

    def _listed(self, entry: os.DirEntry[str], key: str, wanted: Callable[[str], object]) -> ObjectInfo | None:
        try:
            key.encode()
            found = entry.stat()
        except UnicodeEncodeError:
            why = "has a name that is not UTF-8"
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not entry.is_symlink():
                return None  # deleted since its folder was read
            why = f"leads to no file ({error.strerror})"
        else:
            return ObjectInfo(key, found.st_size, _etag(found)) if stat.S_ISREG(found.st_mode) else None
        if not wanted(key):
            return None
        raise Unreadable(
            f"{self._folder}/{key.encode(errors='surrogateescape').decode(errors='backslashreplace')}", why
        )

    def _path(self, key: str) -> Path:
        if not {"", ".", ".."}.isdisjoint(key.split("/")):
            raise FileNotFoundError(key)
        return self._folder / key


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _identity(found: os.stat_result) -> _Folder:
    return found.st_dev, found.st_ino


def _etag(found: os.stat_result) -> str:
    """As obstore makes it: indexes of earlier releases are known by it."""
    return f'"{found.st_ino:x}-{found.st_mtime_ns // 1000:x}-{found.st_size:x}"'
