"""The operator's log of a run, in a file: the terminal belongs to the display."""

from __future__ import annotations

import logging
from pathlib import Path

_FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogFile(logging.FileHandler):
    """Leaves out what cannot be written, as on a full disk. Python itself prints a traceback for each line."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def log_to(path: Path) -> None:
    """Sends the log of this process to a file. Raises OSError."""
    path.parent.mkdir(exist_ok=True)
    if not logging.getLogger().handlers:  # else a program that calls this one has its own
        logging.basicConfig(handlers=[LogFile(path)], level=logging.INFO, format=_FORM)
    logging.getLogger("httpx").setLevel(logging.WARNING)
