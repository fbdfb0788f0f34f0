"""The folder of a cluster.

Everything is recorded here before it is made, so that the next process can remove it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

import msgspec

from e2e.cluster import cgroups
from e2e.cluster.namespaces import Process
from e2e.cluster.plan import Plan
from e2e.cluster.process import wait_until


class ClusterRuns(Exception):
    """Another process holds the folder."""


class NotOurs(Exception):
    """The folder holds something else."""


@dataclass(frozen=True)
class State:
    root: Path

    @property
    def plan_file(self) -> Path:
        return self.root / "plan.json"

    @property
    def lock_file(self) -> Path:
        """The lock, which also marks a folder as a cluster's."""
        return self.root / "coxswain-cluster.lock"

    @property
    def reaper_file(self) -> Path:
        return self.root / "reaper.pid"

    @property
    def first_file(self) -> Path:
        """The first process of the cluster's namespaces."""
        return self.root / "cluster.pid"

    @property
    def control_plane(self) -> Path:
        return self.root / "control-plane"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def node(self, name: str) -> Path:
        return self.root / "nodes" / name

    def node_file(self, name: str) -> Path:
        return self.root / f"{name}.pid"

    def plan(self) -> Plan | None:
        return msgspec.json.decode(self.plan_file.read_bytes(), type=Plan) if self.plan_file.exists() else None

    def write_plan(self, plan: Plan) -> None:
        """On the disk before it returns."""
        with self.plan_file.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(plan)))
            os.fsync(file.fileno())

    def take(self) -> TextIOWrapper:
        """The lock: hold it while anything of the cluster runs. Raises ClusterRuns and NotOurs."""
        self.root.mkdir(parents=True, exist_ok=True)
        strangers = [entry.name for entry in self.root.iterdir()]
        if strangers and not self.lock_file.exists():
            raise NotOurs(
                f"{self.root} holds {strangers[0]} and no cluster: name an empty or a new folder with --state"
            )
        lock = self.lock_file.open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise ClusterRuns(self.occupied()) from None
        return lock

    def occupied(self) -> str:
        down = f"python -m e2e.cluster down --state {self.root}"
        return f"a cluster is already running in {self.root}: use it, or end it with `{down}`"

    def sweep(self) -> None:
        """Removes all that the plan names and the folder holds, but for the lock.

        For the lock's holder only.
        """
        first, plan = Process.read(self.first_file), self.plan()
        if first is not None and first.alive:
            os.kill(first.pid, signal.SIGKILL)
            wait_until(lambda: not first.alive, f"the end of process {first.pid}")
        if plan is not None:
            remove_link(plan.name)
            cgroups.remove(plan.name)
        # The reaper's id goes last: a `down` meanwhile needs it to wait for the reaper.
        for entry in sorted(self.root.iterdir(), key=lambda entry: entry == self.reaper_file):
            if entry != self.lock_file:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def remove(self) -> None:
        self.sweep()
        shutil.rmtree(self.root)


def remove_link(name: str) -> None:
    """Gone when this returns: it goes by itself with the namespace at its other end, but not at
    once.
    """
    subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)
    wait_until(lambda: not Path(f"/sys/class/net/{name}").exists(), f"the end of link {name}")
