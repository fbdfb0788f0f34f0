"""Whether the kernel killed a process for its memory is read from either kind of cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from coxswain_train import cgroup

VERSION_1 = "memory/memory.oom_control", "memory/memory.limit_in_bytes"
VERSION_2 = "memory.events", "memory.max"


@pytest.mark.parametrize(
    ("files", "kills", "limit"),
    [
        (dict(zip(VERSION_2, ("high 0\noom 4\noom_kill 2\noom_group_kill 1\n", "1048576\n"), strict=True)), 2, 1 << 20),
        (dict(zip(VERSION_2, ("oom_kill 0\n", "max\n"), strict=True)), 0, None),
        (dict(zip(VERSION_1, ("under_oom 0\noom_kill 1\n", "4096\n"), strict=True)), 1, 4096),
        (dict(zip(VERSION_1, ("under_oom 0\n", "9223372036854771712\n"), strict=True)), 0, None),
        ({}, 0, None),
    ],
)
def test_kills_and_limit_are_those_of_the_container(
    tmp_path: Path, files: dict[str, str], kills: int, limit: int | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert (cgroup.oom_kills(tmp_path), cgroup.limit(tmp_path)) == (kills, limit)
