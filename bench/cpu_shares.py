"""Control groups that give processes a share of a core each, in either version of cgroups. Needs root."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.local.jobs import wait_until

ROOT = Path("/sys/fs/cgroup")
PERIOD = 10_000  # microseconds: shorter than any task


class Shares:
    """So many groups of `share` cores; removed at the end, when their processes are gone.

    They come before all other processes: on a busy machine it is the quota that holds them back.
    """

    def __init__(self, count: int, share: float, root: Path = ROOT, period: int = PERIOD) -> None:
        self._old = (root / "cpu" / "cpu.cfs_quota_us").exists()
        first = root / "cpu" if self._old else root
        self._groups = [first / f"coxswain-bench-{os.getpid()}-{n}" for n in range(count)]
        self._quota, self._period = int(share * period), period

    def __enter__(self) -> Shares:
        for group in self._groups:
            group.mkdir()
            self._set(group, self._quota)
            weight, most = ("cpu.shares", 262_144) if self._old else ("cpu.weight", 10_000)
            (group / weight).write_text(str(most))
        return self

    def _set(self, group: Path, quota: int) -> None:
        if self._old:
            (group / "cpu.cfs_period_us").write_text(str(self._period))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {self._period}")

    def limit(self, number: int, share: float) -> None:
        """Gives another share to the group of this number."""
        self._set(self._groups[number], int(share * self._period))

    def put(self, pids: Sequence[int]) -> None:
        """Each process into a group of its own, at most as many as there are groups."""
        for group, pid in zip(self._groups, pids, strict=False):
            (group / "cgroup.procs").write_text(str(pid))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for group in self._groups:
            wait_until(lambda group=group: self._removed(group), f"the processes of {group} to end")

    def _removed(self, group: Path) -> bool:
        with suppress(OSError):
            group.rmdir()
        return not group.exists()
