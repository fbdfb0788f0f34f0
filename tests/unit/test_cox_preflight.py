"""What `cox run` asks of this machine before it starts a job."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from coxswain.errors import Refused
from coxswain_cli.preflight import lock_checkpoints


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
