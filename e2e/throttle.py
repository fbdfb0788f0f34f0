"""Gives a container less of its processors, as a broken fan or a busy neighbour would, or none at all."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import cgroups
from e2e.job import Object

PERIOD = 100_000  # microseconds


def container_id(pod: Object, name: str) -> str:
    """Of the container that runs: another one after each of its restarts."""
    lists = (pod["status"].get(kind) or () for kind in ("initContainerStatuses", "containerStatuses"))
    status = next(c for statuses in lists for c in statuses if c["name"] == name)
    found: str = status["containerID"].rpartition("/")[2]
    return found


@contextmanager
def throttled(cgroup: str, container: str, share: float) -> Iterator[None]:
    """Within the block the container has `share` of one processor. `cgroup`: of its node."""
    set_ = [quota for folder in _folders(cgroup, container) for quota in _quotas(folder)]
    assert set_, f"no cgroup of {container} below {cgroup} limits processors"
    for path, limited, _ in set_:
        path.write_text(limited.format(int(share * PERIOD)))
    try:
        yield
    finally:
        for path, _, free in set_:
            if path.exists():
                path.write_text(free)


def stop(cgroup: str, container: str) -> None:
    """Makes every process of the container hang, until it is killed."""
    found = {
        int(pid) for folder in _folders(cgroup, container) for pid in (folder / "cgroup.procs").read_text().split()
    }
    assert found, f"no process of {container} below {cgroup}"
    for pid in found:
        os.kill(pid, signal.SIGSTOP)


def _folders(cgroup: str, container: str) -> list[Path]:
    return [folder for h in cgroups.here() for folder in (h.root / cgroup).rglob(f"*{container}*") if folder.is_dir()]


def _quotas(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """File, limited and free, of version 1 and version 2."""
    if (folder / "cpu.cfs_quota_us").exists():
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
        yield folder / "cpu.cfs_quota_us", "{}", "-1"
    if (folder / "cpu.max").exists():
        yield folder / "cpu.max", f"{{}} {PERIOD}", f"max {PERIOD}"
