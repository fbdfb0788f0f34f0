"""`python -m coxswain_link.bootstrap MODULE`: runs a service that can be told to leave from its first moment on.

Process 1 of a container does not notice SIGTERM before it has a handler, and importing what a service needs takes a second:
told to leave meanwhile, it would use up its pod's grace period. So nothing but the standard library is imported here.
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
    """Runs `module` as `python -m` would. Until it sets its own handler, SIGTERM ends the process: nothing is begun yet."""
    signal.signal(signal.SIGTERM, _leave)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _leave(_: int, __: FrameType | None) -> NoReturn:
    os.write(2, b"told to leave (SIGTERM) while starting\n")
    os._exit(Exit.RETRYABLE)


if __name__ == "__main__":
    del sys.argv[0]
    bootstrap(sys.argv[0])
