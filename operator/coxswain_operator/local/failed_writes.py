"""Which files cannot be written, and since when: repeating helps a disk that is full for a moment, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 10.0  # seconds


class FailedWrites:
    """Remembers for each file the first of the failures that no success has followed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[Path, float] = {}
        self._lasting: dict[Path, OSError] = {}

    @contextmanager
    def watch(self, path: Path) -> Iterator[None]:
        """For one write of the file. Raises its OSError, with the file's name."""
        try:
            yield
        except OSError as error:
            named, now = OSError(error.errno, error.strerror, str(path)), self._clock()
            if now - self._since.setdefault(path, now) >= PATIENCE:
                self._lasting[path] = named
            raise named from error
        self._since.pop(path, None)
        self._lasting.pop(path, None)

    def check(self) -> None:
        """Raises the error of a file that failed again and again for PATIENCE seconds."""
        for error in self._lasting.values():
            raise error
