"""Gives a container less of its processors, as a broken fan or a busy neighbour would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import cgroups
from e2e.job import Object

PERIOD = 100_000  # microseconds


def container_id(pod: Object, name: str) -> str:
    """Of the container that runs: another one after each of its restarts."""
    status = next(c for c in pod["status"]["containerStatuses"] if c["name"] == name)
    found: str = status["containerID"].rpartition("/")[2]
    return found


@contextmanager
def throttled(cgroup: str, container: str, share: float) -> Iterator[None]:
    """Within the block the container has `share` of one processor. `cgroup`: of its node."""
    places = [folder for h in cgroups.here() for folder in (h.root / cgroup).rglob(f"*{container}*") if folder.is_dir()]
    set_ = [quota for folder in places for quota in _quotas(folder)]
    assert set_, f"no cgroup of {container} below {cgroup} limits processors"
    for path, limited, _ in set_:
        path.write_text(limited.format(int(share * PERIOD)))
    try:
        yield
    finally:
        for path, _, free in set_:
            if path.exists():
                path.write_text(free)


def _quotas(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """File, limited and free, of version 1 and version 2."""
    if (folder / "cpu.cfs_quota_us").exists():
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
        yield folder / "cpu.cfs_quota_us", "{}", "-1"
    if (folder / "cpu.max").exists():
        yield folder / "cpu.max", f"{{}} {PERIOD}", f"max {PERIOD}"
