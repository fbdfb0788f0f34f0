"""`python guarded.py command ...`: runs a command whose processes end with the caller, also after a
SIGKILL to the caller.

The caller starts this file in a process group of its own and holds the other end of its standard
input. When that closes, all of the group is killed. `go build` needs it: a signal to `go` alone
leaves its compilers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run_guarded(command: Sequence[str | Path], **options: Any) -> None:
    """As `subprocess.run(command, check=True)`; no process of the command outlives this one."""
    guarded = [sys.executable, str(Path(__file__).resolve()), *map(str, command)]
    with subprocess.Popen(guarded, stdin=subprocess.PIPE, process_group=0, **options) as guard:
        try:
            code = guard.wait()
        finally:
            if guard.stdin is not None:
                guard.stdin.close()
    if code:
        raise subprocess.CalledProcessError(code, command)


def main(command: Sequence[str]) -> int:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    return child.wait()


def _end_with_the_caller() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
