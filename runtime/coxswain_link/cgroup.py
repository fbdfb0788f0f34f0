"""What the kernel counts of this container, in either version of cgroups: its memory, and how long it was held back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_OF_PROCESS = Path("/proc/self/cgroup")
_KILLS = ("memory.events", "memory.oom_control")
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_UNLIMITED = 1 << 60  # bytes; version 1 shows a huge number instead of "max"


def oom_kills(root: Path = ROOT, of_process: Path = _OF_PROCESS) -> int:
    """How many processes the kernel killed so far for lack of memory; 0 where it does not count them."""
    text = next(_texts("memory", _KILLS, root, of_process), "")
    counted = [line.split() for line in text.splitlines() if line.startswith("oom_kill ")]
    return int(counted[0][1]) if counted else 0


def limit(root: Path = ROOT, of_process: Path = _OF_PROCESS) -> int | None:
    """Bytes; None for no limit."""
    text = next(_texts("memory", _LIMITS, root, of_process), "").strip()
    return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None


def killed_for_memory(what: str) -> str:
    """Says so of a process, with the limit where there is one."""
    bytes_ = limit()
    return f"{what} was killed for its memory" + (f" (limit {bytes_ >> 20} MiB)" if bytes_ else "")


def held_back(root: Path = ROOT, of_process: Path = _OF_PROCESS) -> float:
    """Seconds that the quota of this process's group has held it back so far, added up over processors; 0 where none is counted.

    A group without a quota is never held back, however many others want its processors.
    """
    text = next(_texts("cpu", ("cpu.stat",), root, of_process), "")
    counted = dict(line.split() for line in text.splitlines())
    return int(counted.get("throttled_usec", 0)) / 1e6 + int(counted.get("throttled_time", 0)) / 1e9


class CoreShare:
    """Of the time in which the process could run, how much the quota of its control group let it run."""

    def __init__(
        self, held_back: Callable[[], float] = held_back, clock: Callable[[], float] = time.process_time
    ) -> None:
        self._held_back, self._clock = held_back, clock
        self._before = clock(), held_back()
        self.value = 1.0  # in the last step

    def step(self) -> None:
        """Of what has passed since the call before."""
        now = self._clock(), self._held_back()
        ran, lost = (b - a for a, b in zip(self._before, now, strict=True))
        self.value, self._before = ran / (ran + lost) if ran > 0 else 1.0, now


def _texts(controller: str, files: tuple[str, ...], root: Path, of_process: Path) -> Iterator[str]:
    return filter(None, (_read(folder / file) for folder in _groups(controller, root, of_process) for file in files))


def _groups(controller: str, root: Path, of_process: Path) -> Iterator[Path]:
    """Where the process's group may be: below the mount as the kernel names it, or the mount itself, as in a container."""
    for line in _read(of_process).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            mounts = (root / controller, root / controllers) if controllers else (root,)
            yield from (mount / path.lstrip("/") for mount in mounts)
            yield from mounts


def _read(path: Path) -> str:
    """Empty where it cannot be read."""
    with suppress(OSError):
        return path.read_text()
    return ""
