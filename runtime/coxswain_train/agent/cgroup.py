"""What the kernel tells of this container's memory, whichever of the two cgroup versions it has."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_KILLS = ("memory.events", "memory/memory.oom_control")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
_UNLIMITED = 1 << 60  # bytes; version 1 says a huge number instead of "max"


def oom_kills(root: Path = ROOT) -> int:
    """How many processes were killed so far because memory was used up; 0 where the kernel does not tell."""
    counted = [line.split() for line in _first(root, _KILLS).splitlines() if line.startswith("oom_kill ")]
    return int(counted[0][1]) if counted else 0


def limit(root: Path = ROOT) -> int | None:
    """Bytes; None for no limit."""
    words = _first(root, _LIMITS).strip()
    return int(words) if words.isdecimal() and int(words) < _UNLIMITED else None


def _first(root: Path, names: tuple[str, ...]) -> str:
    for name in names:
        with suppress(OSError):
            return (root / name).read_text()
    return ""
