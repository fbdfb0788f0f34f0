"""What a process has used, from /proc."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.process import Child

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """`cpu`: seconds so far. `rss` now and `peak` so far, in MiB."""

    cpu: float
    rss: float
    peak: float


def cpu_seconds(pid: int) -> float:
    """So far, its threads' included. Raises OSError when it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def usage(pid: int) -> Usage:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    rss, peak = (int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return Usage(cpu_seconds(pid), rss, peak)


def require_alive(processes: Sequence[Child]) -> None:
    """Raises RuntimeError with the tail of the log of one that has ended."""
    for child in processes:
        if child.process.poll() is not None:
            tail = "\n".join(child.log.read_text(errors="replace").splitlines()[-30:])
            raise RuntimeError(f"{child.log.stem} ended with exit code {child.process.returncode}:\n{tail}")


class Meter:
    """CPU from its making on, of some processes and of the cluster's servers by name, and the
    processes' memory.
    """

    def __init__(self, processes: Sequence[Child], servers: Callable[[], dict[str, float]]) -> None:
        self._pids, self._servers = [child.process.pid for child in processes], servers
        self._before, self._servers_before = sum(usage(pid).cpu for pid in self._pids), servers()

    def read(self) -> dict[str, Any]:
        now = [usage(pid) for pid in self._pids]
        return {
            "cpu": sum(u.cpu for u in now) - self._before,
            "rss": sum(u.rss for u in now),
            "peak": sum(u.peak for u in now),
            "servers": {name: cpu - self._servers_before[name] for name, cpu in self._servers().items()},
        }
