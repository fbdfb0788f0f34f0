"""Small machines in this one: a process tree with mounts, network, host name and process ids of its
own.

Its first process is `pause`. When that ends, the kernel kills all processes inside and removes
mounts, links and rules.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.process import Argument, Child, binary, wait_until

UNSHARE: list[Argument] = [
    "unshare", "--fork", "--kill-child=SIGKILL", "--pid", "--mount", "--net", "--uts", "--mount-proc",
    "--propagation", "private",
]  # fmt: skip


@dataclass(frozen=True)
class Process:
    """A process id, with its start time: ids are used again."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started

    def write(self, path: Path) -> None:
        path.write_text(f"{self.pid} {self.started}\n")

    @staticmethod
    def read(path: Path) -> Process | None:
        """None when there is no such file (or its writer was killed over it)."""
        words = path.read_text().split() if path.exists() else []
        return Process(int(words[0]), int(words[1])) if len(words) == 2 else None


def start_time(pid: int) -> int | None:
    """Clock ticks since boot; None for a process that is gone or only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def first_process(ancestor: int) -> int | None:
    """The id, as seen here, of the namespace's first process below `ancestor`; None while there is
    none.
    """
    for pid in (ancestor, *descendants(ancestor)):
        ids = _namespace_ids(pid)
        if len(ids) > 1 and ids[-1] == "1" and Path(f"/proc/{pid}/comm").read_text().strip() == "pause":
            return pid
    return None


def descendants(pid: int) -> list[int]:
    """Ids of its children, their children, and so on."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    children = [int(word) for word in path.read_text().split()] if path.exists() else []
    return [found for child in children for found in (child, *descendants(child))]


def commands_with(*words: Argument) -> list[Process]:
    """The processes whose command lines have all these words, whole or as the beginning of a path."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended meanwhile
            line = file.read_text(errors="replace").split("\0")
            if all(any(part == str(word) or part.startswith(f"{word}/") for part in line) for word in words):
                found.append(identify(int(file.parent.name)))
    return found


def _namespace_ids(pid: int) -> list[str]:
    path = Path(f"/proc/{pid}/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])


@dataclass(frozen=True)
class Inside:
    """The namespaces of `pid`, to run commands in."""

    pid: int

    def command(self, command: Sequence[Argument]) -> list[Argument]:
        return ["nsenter", "--target", str(self.pid), "--pid", "--mount", "--net", "--uts", "--", *command]

    def start(self, command: Sequence[Argument], log: Path) -> Child:
        """A server inside; it ends with the namespace, not with us."""
        return Child(self.command(command), log, outlives=True)

    def run(self, command: Sequence[Argument], stdin: str = "", deadline: float = 120.0) -> str:
        """Returns its output; raises RuntimeError with its error output when it fails."""
        return run(self.command(command), stdin, deadline)

    def ip(self, lines: Sequence[str]) -> None:
        """Runs an `ip` batch on the network inside; process ids in it are ours, as for `netns`."""
        run(["nsenter", "--target", str(self.pid), "--net", "--", "ip", "-batch", "-"], "\n".join(lines))

    def make_inner(self, log: Path) -> tuple[Child, Process]:
        """New namespaces below these, and their first process: they end with it."""
        child = self.start([*UNSHARE, binary("pause")], log)
        child.wait_until(lambda: first_process(child.process.pid) is not None)
        pid = first_process(child.process.pid)
        assert pid is not None
        return child, identify(pid)


def identify(pid: int) -> Process:
    """Raises ProcessLookupError when it is gone already."""
    started = start_time(pid)
    if started is None:
        raise ProcessLookupError(f"process {pid} ended while it was being started")
    return Process(pid, started)


def run(command: Sequence[Argument], stdin: str = "", deadline: float = 120.0) -> str:
    """Returns its output; raises RuntimeError with its error output when it fails."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=deadline, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def wait_for_end(process: Process, what: str) -> None:
    wait_until(lambda: not process.alive, f"the end of {what} (process {process.pid})")
