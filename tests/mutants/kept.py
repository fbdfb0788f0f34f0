"""Forks with a keeper: a deadline, and no process left, whichever process is killed. Linux only.

The forking process waits for the keeper. The keeper adopts all orphans below it
(PR_SET_CHILD_SUBREAPER). It kills them when its child ends, when the deadline passes, or when the
forking process is gone (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

TIMED_OUT = 124  # exit code, as of timeout(1)
_ORPHANED = 125
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def fork_kept(deadline: float) -> int | None:
    """None in the child, which goes on from here. The parent gets its exit code, or -signal."""
    parent = os.getpid()
    keeper = os.fork()
    if keeper:
        return os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    adopt_orphans()
    end_with_parent(parent, signal.SIGTERM)
    itself = os.getpid()
    child = os.fork()
    if child:
        _keep(child, time.monotonic() + deadline)
    end_with_parent(itself, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
    return None


_WATCHED = {signal.SIGCHLD, signal.SIGTERM}


def _keep(child: int, end: float) -> None:
    code = TIMED_OUT
    while (left := end - time.monotonic()) > 0:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            break
        caught = signal.sigtimedwait(_WATCHED, left)
        if caught is not None and caught.si_signo == signal.SIGTERM:
            code = _ORPHANED
            break
    end_descendants()
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        os.kill(os.getpid(), -code)  # ends as the child did
    os._exit(code & 255)


def adopt_orphans() -> None:
    """Processes whose parent ends become ours."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int, by: signal.Signals) -> None:
    """Asks the kernel for a signal when the parent ends, also where it has ended already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os.kill(os.getpid(), by)


def end_descendants() -> None:
    """Kills all that came of a process which adopts orphans, generation by generation."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in children(os.getpid()):
                os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)


def children(parent: int) -> list[int]:
    """Also those that have ended and were not waited for."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(folder.name))
    return found
