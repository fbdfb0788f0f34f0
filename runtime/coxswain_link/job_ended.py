"""The answer to calls of a job that has ended. Servers import it without the HTTP client."""

from __future__ import annotations

from coxswain.errors import CoxswainError
from coxswain.wire import Finished


class JobEnded(CoxswainError):
    """The job has ended: the caller exits with `finished.exit_code`."""

    def __init__(self, finished: Finished) -> None:
        super().__init__(f"{finished.reason}: {finished.message}")
        self.finished = finished
