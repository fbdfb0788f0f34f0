"""Edits of the mix while the job runs: the operator writes them into the mounted job.json."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from coxswain.config import JobConfig, MixConfig, load_job
from coxswain.structs import UNDECODABLE

log = logging.getLogger(__name__)

Edits = Callable[[], MixConfig | None]
"""Returns the mix of the job when it has been edited since the call before."""


class MixEdits:
    """Each call returns the mix of job.json if the file has changed since the call before; else None.

    A job.json of another stream (seed, sources, batch) is left to the next attempt.
    """

    def __init__(self, path: Path, job: JobConfig) -> None:
        self._path, self._job = path, job
        self._seen = self._mark()

    def __call__(self) -> MixConfig | None:
        if (mark := self._mark()) == self._seen:
            return None
        self._seen = mark
        try:
            edited = load_job(self._path)
        except (OSError, *UNDECODABLE) as error:
            log.warning("%s cannot be read, so edits of the mix wait for the next attempt: %s", self._path, error)
            return None
        return edited.mix if edited.stream_hash() == self._job.stream_hash() else None

    def _mark(self) -> tuple[int, ...]:
        """Differs when the file does. A ConfigMap's volume replaces a link, so the inode changes."""
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_ino, found.st_size
