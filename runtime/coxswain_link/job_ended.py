"""The answer to whoever asks for something of a job that has ended. Apart from its clients: a server needs none of those."""

from __future__ import annotations

from coxswain.errors import CoxswainError
from coxswain.wire import Finished


class JobEnded(CoxswainError):
    """The job has ended; whoever asked should leave with `finished.exit_code`."""

    def __init__(self, finished: Finished) -> None:
        super().__init__(f"{finished.reason}: {finished.message}")
        self.finished = finished
