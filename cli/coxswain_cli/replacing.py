"""Replaces a file as a whole: what reads it sees the old content or the new."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """What is written becomes the file at the end. A signal to stop waits until then, so that it leaves no draft.

    A draft that SIGKILL leaves is the next call's: its name is the same. Two calls at a time wait for each other.
    Raises OSError with the name of the target.
    """
    draft = target.with_name(f".{target.name}.draft")
    try:
        with signals_wait(), _locked(draft) as file:
            try:
                _keep_mode(file, target)
                yield file
                file.flush()
                draft.replace(target)
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error


def _keep_mode(file: BinaryIO, target: Path) -> None:
    """Of the file that is replaced, if there is one: before there is anything to read."""
    with suppress(OSError):
        os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))


def is_plain(target: Path) -> bool:
    """Whether it is a file, or nothing yet. Writing goes through a link, and into a pipe or a device: none is replaced."""
    return not target.is_symlink() and (target.is_file() or not target.exists())


def write_whole(target: Path, text: str) -> None:
    """Replaces a plain file by the whole of a text, or leaves it as it is: the disk may be full, the old file being read."""
    if not is_plain(target):
        target.write_text(text, encoding="utf-8")
        return
    with replacing(target) as file:
        file.write(text.encode())


@contextmanager
def signals_wait() -> Iterator[None]:
    """Signals to stop come behind the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _locked(draft: Path) -> Iterator[BinaryIO]:
    """The draft, empty, and no other call's."""
    while True:
        with draft.open("ab") as file:
            _lock(file)
            if _is_at(file, draft):
                file.truncate(0)
                yield file
                return


def _lock(file: BinaryIO) -> None:
    """Waits for another call, whose draft it is: a signal may end this one meanwhile."""
    with suppress(OSError):  # a file system without locks
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting = signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, waiting)


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether it has not become the target of another call meanwhile."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
