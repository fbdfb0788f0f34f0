"""Whether the kernel killed a process for its memory is read from either kind of cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from coxswain_link import cgroup

OF_PROCESS = "12:cpuset:/\n4:memory:/kube/pod-1\n0::/kube/pod-1\n"
VERSION_1 = "memory.oom_control", "memory.limit_in_bytes"
VERSION_2 = "memory.events", "memory.max"


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    ("mount", "files", "kills", "limit"),
    [
        ("", dict(zip(VERSION_2, ("oom 4\noom_kill 2\noom_group_kill 1\n", "1048576\n"), strict=True)), 2, 1 << 20),
        ("", dict(zip(VERSION_2, ("oom_kill 0\n", "max\n"), strict=True)), 0, None),
        ("memory", dict(zip(VERSION_1, ("under_oom 0\noom_kill 1\n", "4096\n"), strict=True)), 1, 4096),
        ("memory", dict(zip(VERSION_1, ("under_oom 0\n", "9223372036854771712\n"), strict=True)), 0, None),
        ("", {}, 0, None),
    ],
)
def test_kills_and_limit_are_those_of_the_processs_own_group(
    tmp_path: Path, inside: bool, mount: str, files: dict[str, str], kills: int, limit: int | None
) -> None:
    """Which is the mount itself in a container, and elsewhere below it, as for `cox run`."""
    of_process, root = tmp_path / "of_process", tmp_path / "root"
    of_process.write_text(OF_PROCESS)
    folder = root / mount if inside else root / mount / "kube/pod-1"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    assert (cgroup.oom_kills(root, of_process), cgroup.limit(root, of_process)) == (kills, limit)


def test_a_group_that_is_not_the_processs_own_counts_nothing(tmp_path: Path) -> None:
    of_process, root = tmp_path / "of_process", tmp_path / "root"
    of_process.write_text(OF_PROCESS)
    (root / "kube/pod-2").mkdir(parents=True)
    (root / "kube/pod-2/memory.events").write_text("oom_kill 2\n")
    assert cgroup.oom_kills(root, of_process) == 0
