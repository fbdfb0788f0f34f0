"""Exit codes of every service, and their meaning to the operator; and that of a `cox` that is interrupted."""

from __future__ import annotations

from enum import IntEnum

INTERRUPTED = 130
"""Of `cox` behind Ctrl-C, as in shells."""


class Exit(IntEnum):
    DONE = 0
    RETRYABLE = 1
    USER_FAULT = 2
    STOPPED = 3  # asked to stop, and everything that had to be saved is saved
