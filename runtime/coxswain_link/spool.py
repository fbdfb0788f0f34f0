"""Content on local disk, mapped into memory: it costs page cache, which the kernel may take back."""

from __future__ import annotations

import errno
import mmap
import resource
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coxswain_link.store import StoreUnavailable

Data = bytes | mmap.mmap
"""What `Spool.hold` returns: both have slices, `find` and the buffer protocol."""

_SMALL = 16 << 10  # bytes up to which a mapping costs more than the content
_SHARE = 4  # a process takes at most this part of the free disk: others share it
_MOST = 64 << 30
_UNSTATED = 1 << 30  # where the file system states no size
_PARTS = 8192  # that are held at a time at most: small ones are in memory, and each larger one keeps a file open
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Spool:
    """Files without a name: the kernel removes them with the process, however it ends."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.gettempdir())

    @property
    def budget(self) -> int:
        """Bytes that may be held at a time, by the disk as it is now."""
        disk = shutil.disk_usage(self.folder)
        return min(disk.free // _SHARE, _MOST) if disk.total else _UNSTATED

    def most(self, part: float) -> int:
        """How many contents may be held at a time with this part of the files that the process may open."""
        return min(_PARTS, int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * part))

    def hold_array(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array, read-only. Raises as `hold`."""
        return np.frombuffer(self.hold([array.tobytes()]), array.dtype) if array.size else array

    def hold(self, parts: Iterable[bytes]) -> Data:
        """The parts as one. Raises StoreUnavailable when the disk is full; errors of `parts` pass."""
        with self._room(), tempfile.SpooledTemporaryFile(_SMALL, dir=str(self.folder)) as file:
            size = 0
            for part in parts:
                size += len(part)
                file.write(part)
            if size <= _SMALL:
                file.seek(0)
                return bytes(file.read())
            file.flush()
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)

    @contextmanager
    def _room(self) -> Iterator[None]:
        """Around the file, too: its end writes what it still buffers."""
        try:
            yield
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise StoreUnavailable(
                f"{self.folder} has no room for a block of data ({error}); make room there"
            ) from error
