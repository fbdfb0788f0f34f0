"""The files of a folder as objects, whatever their names: obstore neither lists nor reads all of them.

A write has a staging file `NAME#1`, of any number, beside it for a moment: obstore takes no file of such a name for an object.
Its writer holds a lock on it: one that is not locked was left by a process that was killed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, NamedTuple

from coxswain_link.object_info import ObjectInfo
from coxswain_link.publishing import publish
from coxswain_link.store_faults import ObjectChanged, Unreadable

_Folder = tuple[int, int]
"""Device and inode: what a folder is, whatever links lead to it."""

Chooses = Callable[[str], object]
"""Of a file: whether it is wanted, of a folder: whether it may hold one. By its key."""

_WAYS = 100
"""To one folder, each by two links or more. A dozen folders that link to each other have hundreds of millions."""

_STAGED = re.compile(r"#[0-9]+$")
_NAME, _RIGHTS = "rename it", "give the user of the job the right to"
_LASTING = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
_UNSYNCED = (errno.EINVAL, errno.EBADF, errno.EACCES)  # a folder that cannot be synced, or not by this user
_REPAIRED = "lost+found"  # what a check of a file system puts there: at the root of each, and only root may list it


class _Entered(NamedTuple):
    """A folder that is listed: its key, itself and those above it, the links on its way, and its entries, the next one last."""

    key: str
    way: tuple[_Folder, ...]
    links: int
    rest: list[os.DirEntry[str]]


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

    def write(self, key: str, data: bytes, new: bool) -> bool:
        """Writes a file; False, where it is to be a `new` one and one has the name. It is on disk before it has its name,
        and the name is when this returns: a power cut leaves no empty file, which a `new` one could never replace."""
        path = self._path(key)
        made = _make(path.parent)
        with _staged(path) as (file, staged):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            claimed = publish(staged, path, new)
        for folder in (path.parent, *made):
            _sync_folder(folder)
        return claimed

    def collect_staged(self, below: Callable[[str], object]) -> int:
        """Deletes the staging files of writers that were killed, of keys that `below` chooses: how many there were. Enters no
        folder, as `shards/`, that it does not choose."""
        found = [info.path for info in self._below(lambda key: False, lambda folder: False, below)]
        return sum(_discard(self._folder / key) for key in found if _STAGED.search(key) and below(key))

    def list(self, wanted: Chooses, may_hold: Chooses = lambda folder: True) -> Iterator[ObjectInfo]:
        """All files, by path: there may be millions. Raises Refused for a wanted one that cannot be read, and for a folder that
        cannot be, or that too many links lead to, and `may_hold` a wanted one."""
        return self._below(wanted, may_hold)

    def _below(self, wanted: Chooses, may_hold: Chooses, enters: Chooses = lambda folder: True) -> Iterator[ObjectInfo]:
        ways = Counter[_Folder]()
        walk = [self._enter("", (), 0, ways, may_hold)]  # no recursion: folders may be deep
        while walk:
            here = walk[-1]
            if not here.rest:
                walk.pop()
                continue
            entry = here.rest.pop()  # so that what a listing has passed is freed
            key = f"{here.key}/{entry.name}" if here.key else entry.name
            if _is_folder(entry):
                if enters(f"{key}/"):
                    walk.append(self._enter(key, here.way, here.links + entry.is_symlink(), ways, may_hold))
            elif (info := self._listed(entry, key, wanted)) is not None:
                yield info

    def _enter(
        self, folder: str, above: tuple[_Folder, ...], links: int, ways: Counter[_Folder], may_hold: Chooses
    ) -> _Entered:
        here, entries = self._entries(folder, may_hold)
        nothing = _Entered(folder, above, links, [])
        if here in above:
            return nothing  # a link to a folder above it: its files are listed there
        ways[here] += links > 1
        if ways[here] > _WAYS:
            self._refuse_ways(folder, may_hold)
            return nothing
        return _Entered(folder, (*above, here), links, sorted(entries, key=_place, reverse=True))

    def _refuse_ways(self, folder: str, may_hold: Chooses) -> None:
        if may_hold(folder):
            why = f"is one of more than {_WAYS} ways to the same folder, each by several links"
            raise Unreadable(_shown(self._folder / folder), why, "remove links")

    def _entries(self, folder: str, may_hold: Chooses) -> tuple[_Folder, Sequence[os.DirEntry[str]]]:
        """What is in a folder: nothing, where it was deleted since the one above it was read, or holds nothing wanted."""
        path = self._folder / folder
        try:
            with os.scandir(path) as entries:
                return _identity(path.stat()), list(entries)
        except FileNotFoundError:
            if not folder:
                raise
        except OSError as error:
            if not folder or error.errno not in _LASTING:
                raise
            if folder != _REPAIRED and may_hold(folder):
                raise Unreadable(_shown(path), f"cannot be listed ({error.strerror})", _RIGHTS) from error
        return (0, 0), ()

    def _listed(self, entry: os.DirEntry[str], key: str, wanted: Chooses) -> ObjectInfo | None:
        try:
            key.encode()
            found = entry.stat()
        except UnicodeEncodeError:
            why, way_out = "has a name that is not UTF-8", _NAME
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not entry.is_symlink():
                return None  # deleted since its folder was read
            denied = isinstance(error, PermissionError)
            why = f"{'cannot be looked at' if denied else 'leads to no file'} ({error.strerror})"
            way_out = _RIGHTS if denied else _NAME
        else:
            return ObjectInfo(key, found.st_size, _etag(found)) if stat.S_ISREG(found.st_mode) else None
        if not wanted(key):
            return None
        raise Unreadable(_shown(self._folder / key), why, way_out)

    def _path(self, key: str) -> Path:
        if not {"", ".", ".."}.isdisjoint(key.split("/")):
            raise FileNotFoundError(key)
        return self._folder / key


@contextmanager
def _staged(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file beside this one, locked while it has a name."""
    while True:
        staged = path.with_name(f"{path.name}#{secrets.randbits(32)}")
        with staged.open("xb") as file:
            try:
                _lock(file, fcntl.LOCK_EX)
                if os.fstat(file.fileno()).st_nlink:  # else a collector was between the two
                    yield file, staged
                    return
            finally:
                staged.unlink(missing_ok=True)


def _discard(staged: Path) -> bool:
    """Deletes a staging file, unless a process has it, or none can know."""
    try:
        with staged.open("r+b") as file:
            if not _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
                return False
            staged.unlink()
    except OSError:  # its writer has ended meanwhile, or is another user's
        return False
    return True


def _lock(file: BinaryIO, how: int) -> bool:
    """Some file systems have no locks."""
    with suppress(OSError):
        fcntl.flock(file, how)
        return True
    return False


def _make(folder: Path) -> Sequence[Path]:
    """Makes a folder. Returns those that have a new entry."""
    missing = list(takewhile(lambda each: not each.exists(), (folder, *folder.parents)))
    folder.mkdir(parents=True, exist_ok=True)
    return [each.parent for each in missing]


def _sync_folder(folder: Path) -> None:
    """Brings the names in a folder to disk, where its file system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _UNSYNCED:
            raise


def _shown(path: Path) -> str:
    """For people: also a name that is not UTF-8."""
    return str(path).encode(errors="surrogateescape").decode(errors="backslashreplace")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _place(entry: os.DirEntry[str]) -> str:
    """Where it is by the paths of files: a folder's have a slash behind its name."""
    return f"{entry.name}/" if _is_folder(entry) else entry.name


def _identity(found: os.stat_result) -> _Folder:
    return found.st_dev, found.st_ino


def _etag(found: os.stat_result) -> str:
    """As obstore makes it: indexes of earlier releases are known by it."""
    return f'"{found.st_ino:x}-{found.st_mtime_ns // 1000:x}-{found.st_size:x}"'
