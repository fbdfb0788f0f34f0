"""What `cox status`, `cox report` and `cox logs` show of a job, wherever it is read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from coxswain.wire import JobReport
from coxswain_cli.reporting.model import MixInForce, RecordedRun

Manifest = dict[str, Any]

Write = Callable[[str, bytes], None]
"""Takes a line of a log: `POD/CONTAINER`, and the line with its end."""


class Progress(msgspec.Struct, frozen=True):
    """How far training is. `note` says how current the numbers are; empty: they are current."""

    step: int
    steps: int = 0  # 0: unknown
    loss: float | None = None
    tokens_per_second: float | None = None
    idle_fraction: float | None = None
    eta_seconds: float | None = None
    note: str = ""


class Seen(msgspec.Struct):
    """A job at one moment. `state` and `explanation` are its heading."""

    job: Manifest
    state: str
    explanation: tuple[str, ...] = ()
    pods: list[Manifest] = []
    report: JobReport | None = None  # the coordinator's answer
    running: bool = True  # pods that have not ended run now
    step: int = 0  # done, by the last recorded line; 0: none
    progress: Progress | None = None
    mixes: tuple[MixInForce, ...] = ()
    workdir: str = ""  # of this machine; empty: the job runs elsewhere

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])


class JobReader(Protocol):
    """Reads one job. Errors: Refused for what the user can mend, other CoxswainErrors for what may pass."""

    def look(self) -> Seen: ...

    def record(self, steps: tuple[int, ...]) -> RecordedRun:
        """The whole run, with the pictures of these steps; none: of selected ones."""

    def logs(self, member: str, follow: bool, write: Write) -> None:
        """Passes each line of the logs of `member` (`trainer-2`; empty: all) to `write`, oldest first.

        `follow`: until the processes end.
        """

    @property
    def report_path(self) -> Path:
        """Where the report is written unless the user names a file."""


def reported(report: JobReport) -> Progress:
    """Without the zeros that stand for rates while the coordinator has closed no step."""
    if report.loss is None:
        return Progress(report.step, report.steps)
    return Progress(
        report.step, report.steps, report.loss, report.tokens_per_second, report.idle_fraction, report.eta_seconds
    )


def stored(status: Manifest, note: str = "") -> Progress | None:
    """Progress from a job's status."""
    found = status.get("progress")
    if not found:
        return None
    idle = _number(found.get("idlePercent"))
    return Progress(
        step=found["step"],
        steps=found["steps"],
        loss=_number(found.get("loss")),
        tokens_per_second=_number(found.get("tokensPerSecond")),
        idle_fraction=None if idle is None else idle / 100,
        eta_seconds=found.get("etaSeconds"),
        note=note,
    )


def _number(text: Any) -> float | None:
    """The API writes numbers as text."""
    with suppress(TypeError, ValueError):
        return float(text)
    return None
