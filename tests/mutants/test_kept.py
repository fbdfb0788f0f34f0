"""A kept fork ends in time and leaves no process, whichever process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster.process import wait_until
from tests.mutants.kept import TIMED_OUT, children

ROOT = Path(__file__).resolve().parents[2]
DETACHED = "subprocess.Popen(['sleep', '600'], start_new_session=True)"


def start(tmp_path: Path, child: str, deadline: float = 60.0) -> subprocess.Popen[str]:
    """A process that forks a kept child and prints its exit code. All of them bear a mark."""
    program = f"""
import os, signal, subprocess, sys
from pathlib import Path
from tests.mutants.kept import fork_kept
code = fork_kept({deadline})
if code is None:
    {child}
    os._exit(0)
print(code)
"""
    command, environment = [sys.executable, "-c", program], {**os.environ, "KEPT_MARK": str(tmp_path)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE)


def marked(mark: str) -> list[int]:
    """Processes that were started with the mark in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if f"KEPT_MARK={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except (OSError, ValueError):
            continue
    return found


def exit_code(tmp_path: Path, child: str, deadline: float = 60.0) -> int:
    with start(tmp_path, child, deadline) as process:
        output, _ = process.communicate(timeout=60)
    wait_until(lambda: not marked(str(tmp_path)), "the end of all processes")
    return int(output)


@pytest.mark.parametrize(
    ("child", "code"), [("pass", 0), ("os._exit(3)", 3), ("os.kill(os.getpid(), signal.SIGABRT)", -signal.SIGABRT)]
)
def test_the_parent_gets_the_exit_code_of_the_child(tmp_path: Path, child: str, code: int) -> None:
    assert exit_code(tmp_path, child) == code


def test_a_child_that_passes_its_deadline_is_killed_with_what_it_started(tmp_path: Path) -> None:
    assert exit_code(tmp_path, f"{DETACHED}; signal.pause()", deadline=0.5) == TIMED_OUT


def test_a_process_that_a_child_leaves_behind_is_killed(tmp_path: Path) -> None:
    assert exit_code(tmp_path, DETACHED) == 0


@pytest.mark.parametrize("victim", ["parent", "child"])
def test_nothing_is_left_when_a_process_is_killed(tmp_path: Path, victim: str) -> None:
    ready = tmp_path / "ready"
    with start(tmp_path, f"{DETACHED}; Path({str(ready)!r}).touch(); signal.pause()") as parent:
        wait_until(ready.exists, "the child")
        (keeper,) = children(parent.pid)
        (child,) = children(keeper)
        os.kill({"parent": parent.pid, "child": child}[victim], signal.SIGKILL)
        wait_until(lambda: not marked(str(tmp_path)), "the end of all processes")
