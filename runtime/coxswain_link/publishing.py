"""Gives a staged file its name: in place of what has it, or only where nothing has."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from coxswain.errors import Refused
from coxswain_link.store_faults import CONDITIONS_MISSING

_UNKNOWN = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
"""What file systems answer that have no hard links (SMB, many of FUSE), or no rename that replaces nothing (NFS)."""

_AT_FDCWD, _RENAME_NOREPLACE = -100, 1


def publish(staged: Path, path: Path, new: bool) -> bool:
    """False, where it is to be a `new` name and something has it. The staged name may stay. Raises OSError; Refused, where
    the file system cannot take a name that is new in one step."""
    if not new:
        staged.replace(path)
        return True
    for claim in (os.link, rename_to_new):
        try:
            claim(staged, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise
        else:
            return True
    raise Refused(
        CONDITIONS_MISSING,
        f"{path}: its file system has neither hard links nor a rename that replaces nothing, so that two coordinators could "
        "write one record of the plan; choose a folder of another one, such as ext4, XFS, NFS or CephFS, or an S3 server",
    )


def rename_to_new(staged: Path, path: Path) -> None:
    """Raises FileExistsError where something has the name, and OSError where the file system knows no such rename."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(staged), _AT_FDCWD, os.fsencode(path), _RENAME_NOREPLACE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
