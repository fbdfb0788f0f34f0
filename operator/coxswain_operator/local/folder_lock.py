"""Makes a work directory and locks it: one run at a time."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

import tenacity

from coxswain.errors import Refused

LOCK_SECONDS = 5.0  # that the processes of a killed run may take to end
_LOCK = "cluster.lock"
_FULL = (errno.ENOSPC, errno.EDQUOT)


def lock_folder(workdir: Path, seconds: float) -> int:
    """Returns the descriptor of the lock. The run's processes inherit it, so the lock is free when all ended.

    Raises Refused while another run holds it, and for a path that cannot be a work directory.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        return _lock(workdir / _LOCK, seconds)
    except OSError as error:
        way_out = "make room there, or choose" if error.errno in _FULL else "choose"
        message = f"{workdir} cannot be a work directory ({_why(error)}); {way_out} another --workdir"
        raise Refused("WorkdirUnusable", message) from error


def check_held(descriptor: int, workdir: Path) -> None:
    """Raises OSError where the folder with this lock was moved or deleted: a write would make another one there."""
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(descriptor), (workdir / _LOCK).stat()):
            return
    raise OSError(errno.ENOENT, "the work directory was moved or deleted while the job ran", str(workdir))


def _why(error: OSError) -> str:
    """Names what stands where a folder is needed: it may be a part of the path."""
    if not isinstance(error, FileExistsError):
        return str(error.strerror)
    is_link = Path(error.filename).is_symlink()
    return f"{error.filename} is {'a link that leads to no folder' if is_link else 'no folder'}"


def _lock(path: Path, seconds: float) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _take(descriptor, path, seconds)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _take(descriptor: int, path: Path, seconds: float) -> None:
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(BlockingIOError),
        stop=tenacity.stop_after_delay(seconds),
        wait=tenacity.wait_fixed(0.1),
        reraise=True,
    )
    try:
        attempts(fcntl.flock, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        message = f"{path.parent} is in use by another run (process {holder}); wait for it, or choose another --workdir"
        raise Refused("WorkdirInUse", message) from error
