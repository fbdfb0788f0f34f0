"""A file of a work directory that cannot be written: a moment is waited for, a lasting failure is named."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from coxswain_operator.local.failed_writes import PATIENCE, FailedWrites

FULL = OSError(errno.ENOSPC, "No space left on device")
FILE = Path("job.json")


class Watched:
    """Failed writes by a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.writes = FailedWrites(lambda: self.now)

    def write(self, seconds: float, *, fails: bool, path: Path = FILE) -> None:
        self.now = seconds
        try:
            with self.writes.watch(path):
                if fails:
                    raise FULL
        except OSError as error:
            assert fails and error.filename == str(path)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_file_that_fails_for_ten_seconds_is_named(watched: Watched) -> None:
    watched.write(0, fails=True)
    watched.write(PATIENCE - 0.1, fails=True)
    watched.writes.check()
    watched.write(PATIENCE, fails=True)
    with pytest.raises(OSError, match=r"No space left on device: 'job\.json'"):
        watched.writes.check()


def test_one_failure_without_another_try_is_none(watched: Watched) -> None:
    watched.write(0, fails=True)
    watched.now = 10 * PATIENCE
    watched.writes.check()


def test_a_success_begins_the_count_again_and_one_of_another_file_does_not(watched: Watched) -> None:
    watched.write(0, fails=True)
    watched.write(1, fails=False)
    watched.write(2, fails=True)
    watched.write(PATIENCE + 1, fails=True)
    watched.writes.check()
    watched.write(PATIENCE + 1.5, fails=False, path=Path("other.json"))
    watched.write(PATIENCE + 2, fails=True)
    with pytest.raises(OSError, match="job"):
        watched.writes.check()
    watched.write(PATIENCE + 3, fails=False)
    watched.writes.check()
