"""Reads a work directory while its run goes on: the job, the latest steps, new events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from coxswain.errors import Refused
from coxswain.wire import StepLine

Manifest = dict[str, Any]

RUNS = Path("runs")


def default_workdir(job: str) -> Path:
    return RUNS / job


def find_workdir(job_or_folder: str) -> Path:
    """Finds a work directory by folder, or by job as runs/JOB. Raises Refused."""
    for folder in (Path(job_or_folder), default_workdir(job_or_folder)):
        if (folder / "cluster").is_dir():
            return folder
    message = (
        f"{job_or_folder!r} is neither a work directory nor a job below {RUNS}/; `cox run` prints its work directory"
    )
    raise Refused("NoRun", message)


def objects(workdir: Path, kind: str) -> list[Manifest]:
    """Returns the local cluster's objects of one kind, as stored."""
    return [json.loads(path.read_bytes()) for path in sorted((workdir / "cluster" / kind).glob("*/*.json"))]


def condition(job: Manifest, type_: str) -> Manifest:
    """Returns one condition of the job's status; empty when there is none yet."""
    conditions = job.get("status", {}).get("conditions", ())
    return next((c for c in conditions if c["type"] == type_), {})


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    reason: str
    message: str
    time: str = ""

    @property
    def seconds(self) -> float:
        """Seconds since 1970; 0 when the event has no time."""
        return datetime.fromisoformat(self.time).timestamp() if self.time else 0.0


class Tail:
    """Complete lines of a growing file that were not read before; a torn last line waits for its rest."""

    def __init__(self, path: Path, from_start: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() and not from_start else 0

    def lines(self) -> Iterator[bytes]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield line


def steps_of(tail: Tail) -> list[StepLine]:
    return [msgspec.json.decode(line, type=StepLine) for line in tail.lines()]


def events_of(tail: Tail) -> list[LoggedEvent]:
    return [LoggedEvent(e["reason"], e["message"], str(e.get("time", ""))) for e in map(json.loads, tail.lines())]
