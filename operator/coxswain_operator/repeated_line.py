"""A line of the log about what is tried again and again."""

from __future__ import annotations

import logging


class RepeatedLine:
    """A warning where it differs from the one before; what is said again is for debugging alone."""

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._before = log, ""

    def warn(self, text: str) -> None:
        self._log.log(logging.DEBUG if text == self._before else logging.WARNING, "%s", text)
        self._before = text

    def forget(self) -> None:
        """The next line is a warning, whatever it is: what was tried has been done meanwhile."""
        self._before = ""
