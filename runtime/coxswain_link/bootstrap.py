"""`python -m coxswain_link.bootstrap MODULE`: runs a service that obeys SIGTERM at once.

Process 1 of a container ignores SIGTERM until it has a handler, and a service imports for a second.
A pod stopped meanwhile would use up its grace period. So this module imports only the standard
library.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from types import FrameType
from typing import NoReturn

from coxswain.exits import Exit


def bootstrap(module: str) -> None:
    """Runs `module` as `python -m` would.

    SIGTERM ends the process until the module sets its handler.
    """
    signal.signal(signal.SIGTERM, _leave)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _leave(_: int, __: FrameType | None) -> NoReturn:
    os.write(2, b"stopped by SIGTERM while starting\n")
    os._exit(Exit.RETRYABLE)


if __name__ == "__main__":
    del sys.argv[0]
    bootstrap(sys.argv[0])
