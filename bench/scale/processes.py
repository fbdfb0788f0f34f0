"""What a process has used, from /proc."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.process import Child

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """`cpu`: seconds so far. `rss` now and `peak` so far, in MiB."""

    cpu: float
    rss: float
    peak: float


def usage(pid: int) -> Usage:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    rss, peak = (int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return Usage((int(fields[11]) + int(fields[12])) / _TICKS, rss, peak)


class Meter:
    """CPU from its making on, and memory, of some processes together."""

    def __init__(self, processes: Sequence[Child]) -> None:
        self._pids = [child.process.pid for child in processes]
        self._before = sum(usage(pid).cpu for pid in self._pids)

    def read(self) -> dict[str, float]:
        now = [usage(pid) for pid in self._pids]
        return {
            "cpu": sum(u.cpu for u in now) - self._before,
            "rss": sum(u.rss for u in now),
            "peak": sum(u.peak for u in now),
        }
