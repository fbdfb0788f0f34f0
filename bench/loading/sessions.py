"""What all processes of some sessions use, from /proc: orphans and helpers of a system count with it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

TRACKERS_LEAVE = 5.0  # seconds
_TICKS = os.sysconf("SC_CLK_TCK")
_SESSION, _TIMES = 3, slice(11, 15)  # in /proc/PID/stat, behind the name: own and waited-for children's times


def processes(sessions: Collection[int]) -> list[int]:
    """All that run in these sessions."""
    return [
        pid for pid in (int(d.name) for d in Path("/proc").iterdir() if d.name.isdigit()) if _session(pid) in sessions
    ]


def cpu_seconds(sessions: Collection[int]) -> float:
    """So far, of all processes that run and of their children that have ended."""
    return sum(sum(map(int, _stat(pid)[_TIMES])) for pid in processes(sessions)) / _TICKS


def memory(pids: Collection[int]) -> float:
    """MiB of these processes; what several share counts once (PSS)."""
    return sum(map(_proportional, pids)) / 1024


def end(sessions: Collection[int]) -> None:
    """Kills all processes of these sessions, and returns when none runs.

    The trackers of Python's multiprocessing come last: they remove what the others have in shared memory, and end by themselves.
    """
    _kill(sessions, _is_no_tracker)
    if not ended(sessions, TRACKERS_LEAVE):
        _kill(sessions)


def ended(sessions: Collection[int], seconds: float) -> bool:
    """Waits for the end of all processes of these sessions, at most so long."""
    limit = time.monotonic() + seconds
    while processes(sessions) and time.monotonic() < limit:
        time.sleep(0.05)
    return not processes(sessions)


def _kill(sessions: Collection[int], which: Callable[[int], bool] = bool) -> None:
    while found := list(filter(which, processes(sessions))):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _is_no_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False  # it has ended


def _session(pid: int) -> int:
    """0: it has ended, or only waits to be reaped."""
    fields = _stat(pid)
    return int(fields[_SESSION]) if fields and fields[0] != "Z" else 0


def _stat(pid: int) -> list[str]:
    """Empty: it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _proportional(pid: int) -> int:
    """KiB; 0: it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return int(found[1]) if (found := re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)) else 0
