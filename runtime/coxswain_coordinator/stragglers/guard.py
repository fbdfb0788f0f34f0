"""What watches slow devices never ends a job: an error of it is logged, and training goes on as it is."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import ParamSpec

log = logging.getLogger(__name__)
P = ParamSpec("P")


class Guard:
    """Calls what training does not need."""

    def __init__(self) -> None:
        self._said = set[tuple[str, str, int | None]]()  # kinds of errors, and the lines that raised them

    def __call__(self, call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether the call went well. The errors of one line of code are logged once, with a stack."""
        try:
            call(*args, **kwargs)
        except Exception as error:  # of any kind: the driver would end the job
            self._say(error)
            return False
        return True

    def _say(self, error: Exception) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        key = type(error).__name__, last.filename, last.lineno
        if key in self._said:
            return
        self._said.add(key)
        log.error(
            "slow devices: %s: %s; nothing is done about them in this step, and training goes on",
            type(error).__name__, error, exc_info=error,
        )  # fmt: skip
