"""What `cox run` asks of this machine before it starts a job."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from coxswain.errors import Refused
from coxswain_cli.preflight import check_room, lock_checkpoints


def test_a_folder_of_checkpoints_on_a_file_system_without_locks_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock_checkpoints({"spec": {"checkpoint": {"uri": f"file://{tmp_path}"}}}):
        pass


def test_a_folder_of_checkpoints_that_another_run_holds_is_refused_until_that_ends(tmp_path: Path) -> None:
    job = {"spec": {"checkpoint": {"uri": f"file://{tmp_path}"}}}
    with lock_checkpoints(job), pytest.raises(Refused, match="in use by another run"), lock_checkpoints(job):
        pass
    with lock_checkpoints(job):
        pass


class Disk:
    """What `statvfs` says: a file system in blocks of 4 KiB, some of them kept for root."""

    f_frsize, f_bfree, f_blocks = 4096, 1000, 2000

    def __init__(self, available: int) -> None:
        self.f_bavail = available


@pytest.mark.parametrize("available", [0, 15])
def test_a_disk_with_less_than_64_kib_for_this_user_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available: int
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda folder: Disk(available))
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}'"):
        check_room(tmp_path)


def test_a_disk_with_64_kib_is_not_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda folder: Disk(16))
    check_room(tmp_path)


def test_a_file_system_that_states_no_size_is_not_taken_for_a_full_one() -> None:
    """Some in user space state none, as /proc. Every run was ended there as on a full disk."""
    assert os.statvfs("/proc").f_blocks == 0
    check_room(Path("/proc"))
