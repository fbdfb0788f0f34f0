"""This container's memory as the kernel counts it, in either version of cgroups."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_KILLS = ("memory.events", "memory/memory.oom_control")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
_UNLIMITED = 1 << 60  # bytes; version 1 shows a huge number instead of "max"


def oom_kills(root: Path = ROOT) -> int:
    """How many processes the kernel killed so far for lack of memory; 0 where it does not count them."""
    counted = [line.split() for line in _first(root, _KILLS).splitlines() if line.startswith("oom_kill ")]
    return int(counted[0][1]) if counted else 0


def limit(root: Path = ROOT) -> int | None:
    """Bytes; None for no limit."""
    text = _first(root, _LIMITS).strip()
    return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None


def _first(root: Path, names: tuple[str, ...]) -> str:
    for name in names:
        with suppress(OSError):
            return (root / name).read_text()
    return ""
