"""cgroups of a cluster, in every hierarchy of the machine: version 1, version 2, or both at once."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.process import wait_until

_INHERITED = ("cpuset.cpus", "cpuset.mems")


@dataclass(frozen=True)
class Hierarchy:
    root: Path
    unified: bool


def hierarchies(mounts: str) -> list[Hierarchy]:
    """From the text of /proc/mounts."""
    lines = [line.split() for line in mounts.splitlines()]
    return [Hierarchy(Path(words[1]), words[2] == "cgroup2") for words in lines if words[2] in ("cgroup", "cgroup2")]


def here() -> list[Hierarchy]:
    return hierarchies(Path("/proc/mounts").read_text())


def make(name: str) -> None:
    """`name` may be a path of several; each level gets what a container needs to be started in it."""
    for hierarchy in here():
        folder = hierarchy.root
        for part in name.split("/"):
            _share(hierarchy, folder)
            folder = folder / part
            folder.mkdir(exist_ok=True)
            _inherit(folder)
        _share(hierarchy, folder)


def _share(hierarchy: Hierarchy, folder: Path) -> None:
    """Version 2 hands controllers to children only on request."""
    if hierarchy.unified:
        controllers = (folder / "cgroup.controllers").read_text().split()
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def _inherit(folder: Path) -> None:
    """A version 1 cpuset starts empty, and nothing can run in it."""
    for name in _INHERITED:
        own, parent = folder / name, folder.parent / name
        if own.exists() and parent.exists() and not own.read_text().strip():
            own.write_text(parent.read_text())


def remove(name: str, deadline: float = 30.0) -> None:
    """Kills what is left in it and removes it with all below, in every hierarchy. Nothing there is fine."""
    for hierarchy in here():
        top = hierarchy.root / name
        wait_until(lambda top=top: _removed(top), f"the removal of {top}", deadline)  # type: ignore[misc]


def _removed(top: Path) -> bool:
    for folder, _, _ in os.walk(top, topdown=False):
        kill_all(Path(folder))
        try:
            Path(folder).rmdir()
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOENT):
                raise
    return not top.exists()


def kill_all(folder: Path) -> None:
    for pid in processes(folder):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def processes(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except (FileNotFoundError, OSError):
        return []
