"""Reads a work directory while its run goes on: the job, the latest steps, new events."""

from __future__ import annotations

import fcntl
import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from coxswain.api.field_errors import quoted
from coxswain.errors import Refused
from coxswain.lines import end_of_lines, lines_from_end
from coxswain.structs import UNDECODABLE
from coxswain.wire import StepLine
from coxswain_cli.replacing import replacing
from coxswain_cli.reporting.formatting import seconds_of
from coxswain_cli.reporting.model import EVENTS, STEPS

Manifest = dict[str, Any]

T = TypeVar("T")

RUNS = Path("runs")
_DIGITS = 10  # with fewer of them a number is one of trainers
_SCALE = "scale"  # file of a work directory: a request for another number of trainers


def default_workdir(job: str) -> Path:
    return RUNS / job


def as_argument(workdir: Path) -> str:
    """A work directory for a command to type: one whose name begins with a dash is no option."""
    text = str(workdir)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def find_workdir(job_or_folder: str) -> Path:
    """Finds a work directory by folder, or by job as runs/JOB; where neither is one, a folder with records, such as a copy.

    Raises Refused.
    """
    try:
        found = _found(job_or_folder)
    except OSError as error:  # such as a name that is too long, or a folder of another user
        why = f"{quoted(job_or_folder)} cannot be looked up ({error.strerror})"
        raise Refused(
            "NoRun", f"{why}; name a work directory, or a job below {RUNS}/, that this user may read"
        ) from error
    if found is not None:
        return found
    if "://" in job_or_folder:
        raise Refused(
            "NoRun", f"{job_or_folder!r} is no checkpoint location: allowed are s3://bucket/prefix and file:///folder"
        )
    message = (
        f"{job_or_folder!r} is neither a work directory nor a job below {RUNS}/; `cox run` prints its work directory, and "
        "--namespace names the place of a job in a cluster"
    )
    raise Refused("NoRun", message)


def _found(job_or_folder: str) -> Path | None:
    folders = (Path(job_or_folder), default_workdir(job_or_folder))
    whole = (folder for folder in folders if (folder / "cluster").is_dir())
    copied = (folder for folder in folders if any((folder / name).is_file() for name in (STEPS, EVENTS)))
    return next(chain(whole, copied), None)


def is_open(workdir: Path) -> bool:
    """Whether a `cox run`, or a process of one, holds the work directory."""
    try:
        with (workdir / "cluster.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return False
    except OSError:  # it is held, or belongs to another user
        return True
    return False


def condition(job: Manifest, type_: str) -> Manifest:
    """Returns one condition of the job's status; empty when there is none yet."""
    conditions = job.get("status", {}).get("conditions", ())
    return next((c for c in conditions if c["type"] == type_), {})


def request_trainers(workdir: Path, trainers: int) -> None:
    """For the `cox run` that holds the work directory."""
    with replacing(workdir / _SCALE) as file:
        file.write(str(trainers).encode())


def taken_request(workdir: Path) -> int | None:
    """The number of trainers that was asked for since the call before."""
    taken = workdir / f".{_SCALE}.taken"
    try:
        (workdir / _SCALE).replace(taken)  # alone: one that comes meanwhile is left for the next call
    except FileNotFoundError:
        return None
    text = taken.read_bytes()
    taken.unlink()
    return int(text) if text.isdigit() and len(text) < _DIGITS else None


class LoggedEvent(msgspec.Struct, frozen=True):
    reason: str
    message: str
    time: str = ""

    @property
    def seconds(self) -> float:
        """Seconds since 1970; 0 when the event has no time."""
        return seconds_of(self.time)


class Tail:
    """Complete lines of a growing file that were not read before; a torn last line waits for its rest.

    A file that was replaced by its own newer half is read on behind the last line that was read.
    """

    def __init__(self, path: Path, from_start: bool = False) -> None:
        self._path, self._offset, self._last, self._file = path, 0, b"", 0
        if path.exists() and not from_start:
            self._offset, self._last = end_of_lines(path), next(lines_from_end(path), b"")
            self._file = path.stat().st_ino

    def lines(self) -> Iterator[bytes]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._place(file))
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset, self._last = self._offset + len(line), line[:-1]
                yield line

    def rest(self) -> bytes:
        """What stands behind the last complete line: a killed process leaves such."""
        if not self._path.exists():
            return b""
        with self._path.open("rb") as file:
            file.seek(self._place(file))
            return file.read()

    def _place(self, file: BinaryIO) -> int:
        """Where the lines begin that were not read."""
        number = os.fstat(file.fileno()).st_ino
        if self._file not in (0, number):
            self._offset = _end_of(self._path, self._last)
        self._file = number
        return self._offset


def _end_of(path: Path, line: bytes) -> int:
    """Bytes up to the end of the last line that is this one; 0: there is none."""
    end = end_of_lines(path)
    for found in lines_from_end(path):
        if found == line:
            return end
        end -= len(found) + 1
    return 0


def steps_of(tail: Tail) -> list[StepLine]:
    return list(_decoded(tail.lines(), StepLine))


def all_steps(workdir: Path) -> Iterator[StepLine]:
    """One at a time: those of a week's run do not fit in memory."""
    return _decoded(Tail(workdir / STEPS, from_start=True).lines(), StepLine)


def last_step(workdir: Path) -> StepLine | None:
    """From the file's end: the last line that is one."""
    path = workdir / STEPS
    lines = _decoded(lines_from_end(path), StepLine) if path.exists() else iter(())
    return next(lines, None)


def events_of(tail: Tail) -> list[LoggedEvent]:
    return list(_decoded(tail.lines(), LoggedEvent))


def _decoded(lines: Iterable[bytes], type_: type[T]) -> Iterator[T]:
    """Skips what is no line of this kind, such as the rest of a full disk."""
    decoder = msgspec.json.Decoder(type_)
    for line in lines:
        with suppress(*UNDECODABLE):
            yield decoder.decode(line)
