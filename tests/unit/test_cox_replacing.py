"""A file that `cox` replaces: whole at any moment, and nothing beside it after a kill."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from coxswain_cli.replacing import replacing, write_whole

WRITER = """
import os, signal, sys
from pathlib import Path
from coxswain_cli.replacing import replacing
signal.signal(signal.SIGINT, signal.SIG_DFL)
with replacing(Path(sys.argv[1])) as file:
    file.write(b"new ")
    file.flush()
    os.kill(os.getpid(), int(sys.argv[2]))
    file.write(b"page")
"""


def write_and_kill(target: Path, number: int) -> int:
    return subprocess.run([sys.executable, "-c", WRITER, str(target), str(number)], timeout=60).returncode


def write(target: Path, content: bytes) -> None:
    with replacing(target) as file:
        file.write(content)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_bytes(b"old page")
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_middle_ends_the_process_behind_the_whole_file(target, number):
    assert write_and_kill(target, number) == -number
    assert files(target.parent) == {"report.html": b"new page"}


def test_a_kill_leaves_the_old_file_whole_and_the_next_write_nothing_beside_the_new_one(target):
    assert write_and_kill(target, signal.SIGKILL) == -signal.SIGKILL
    assert target.read_bytes() == b"old page"
    write(target, b"newer")
    assert files(target.parent) == {"report.html": b"newer"}


def test_an_error_in_the_middle_leaves_the_old_file_and_nothing_beside_it(target):
    with pytest.raises(ValueError, match="no page"), replacing(target) as file:
        file.write(b"new")
        raise ValueError("no page")
    assert files(target.parent) == {"report.html": b"old page"}


FILLED = """
import resource, signal, sys
from pathlib import Path
from coxswain_cli.plan.files import refusals, write_text
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
with refusals():
    write_text(Path(sys.argv[1]), "x" * 1000)
"""


def test_a_disk_that_is_full_in_the_middle_leaves_the_old_file_and_nothing_beside_it(target):
    ended = subprocess.run([sys.executable, "-c", FILLED, str(target)], timeout=60, capture_output=True, text=True)
    assert f"BadFile: --output {target}: File too large; give a path that can be written" in ended.stderr
    assert files(target.parent) == {"report.html": b"old page"}


def test_a_link_is_written_through_and_a_pipe_is_no_file_to_replace(target):
    link, pipe = target.with_name("link"), target.with_name("pipe")
    link.symlink_to(target)
    os.mkfifo(pipe)
    write_whole(link, "new page")
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    read: list[str] = []
    reader.start()
    write_whole(pipe, "piped")
    reader.join(10)
    assert read == ["piped"]
    assert (link.is_symlink(), pipe.is_fifo(), target.read_text()) == (True, True, "new page")


@pytest.mark.timeout(30)
def test_two_writes_at_a_time_each_give_a_whole_file(target, monkeypatch):
    """The draft that the second waits for is the target by then, and no draft of its own."""
    lock, waits = fcntl.flock, threading.Event()

    def watched(file, how):
        if how == fcntl.LOCK_EX:
            waits.set()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", watched)
    with replacing(target) as file:
        file.write(b"the first ")
        file.flush()
        second = threading.Thread(target=write, args=(target, b"the second"))
        second.start()
        assert waits.wait(20)
        file.write(b"page")
    second.join()
    assert files(target.parent) == {"report.html": b"the second"}


def test_an_error_names_the_file_and_not_its_draft(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write(tmp_path / "absent" / "report.html", b"page")
    assert caught.value.filename == str(tmp_path / "absent" / "report.html")


def test_a_file_is_whole_when_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a reader at this moment sees it empty."""
    named, rename = list[bytes](), Path.replace

    def watched(draft: Path, target: Path) -> Path:
        named.append(draft.read_bytes())
        return rename(draft, target)

    monkeypatch.setattr(Path, "replace", watched)
    with replacing(tmp_path / "file") as file:
        file.write(b"new")
    assert named == [b"new"]


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    """A report that only its owner could read was everybody's once it was written again."""
    target = tmp_path / "file"
    target.write_text("old")
    target.chmod(0o600)
    write_whole(target, "new")
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("new", 0o600)
