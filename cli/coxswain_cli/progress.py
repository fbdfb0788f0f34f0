"""The state of a run for displays, from the work directory and the coordinator's reports."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coxswain.wire import JobReport, StepLine
from coxswain_cli.workdir import LoggedEvent, Tail, condition, events_of, steps_of
from coxswain_operator.views import retry_requested

Manifest = dict[str, Any]

_RECENT_STEPS = 8  # that speed and time left are averaged over
_RECENT_EVENTS = 6
_AMOUNTS = ((999_995_000, 1e9, "G", 2), (999_950, 1e6, "M", 2), (999.5, 1e3, "k", 1))
"""Each unit from where the one before would be rounded to 1000; its size, its name, its digits behind the point."""


@dataclass(frozen=True, slots=True)
class View:
    """The state at one moment. `new_steps` and `new_events` came since the last view."""

    name: str
    state: str
    message: str
    step: int  # done
    steps: int  # 0: unknown
    loss: float | None
    tokens_per_second: float
    idle_fraction: float | None
    eta_seconds: float | None
    waiting_for: str
    checkpoint_step: int  # -1: none
    layout: str
    new_steps: tuple[StepLine, ...]
    new_events: tuple[LoggedEvent, ...]
    events: tuple[LoggedEvent, ...]
    known_until: float  # seconds since 1970: every event up to then is among the events
    last: StepLine | None = None  # the latest step
    evaluation_loss: float | None = None  # the latest

    @property
    def ended(self) -> bool:
        return self.state in ("Completed", "Failed", "Suspended")


class Watcher:
    """Views a run repeatedly. Lines that the files had before this run are skipped."""

    def __init__(self, workdir: Path) -> None:
        self._steps, self._events = Tail(workdir / "steps.jsonl"), Tail(workdir / "events.jsonl")
        self._recent: deque[StepLine] = deque(maxlen=_RECENT_STEPS)
        self._shown: deque[LoggedEvent] = deque(maxlen=_RECENT_EVENTS)
        self._evaluation_loss: float | None = None

    def look(self, job: Manifest, report: JobReport | None, known_until: float = 0.0) -> View:
        new_steps, new_events = tuple(steps_of(self._steps)), tuple(events_of(self._events))
        self._recent.extend(new_steps)
        for line in new_steps:
            self._evaluation_loss = line.evaluation_loss if line.evaluation_loss is not None else self._evaluation_loss
        self._shown.extend(new_events)
        summary, last = condition(job, "Succeeded"), self._recent[-1] if self._recent else None
        step = _done(last, report)
        steps = report.steps if report else 0
        speed, pace = _speed(self._recent)
        return View(
            name=job["metadata"]["name"],
            state="Restarting" if retry_requested(job) else summary.get("reason", "Queued"),
            message=summary.get("message", ""),
            step=step,
            steps=steps,
            loss=last.loss if last else report.loss if report else None,
            tokens_per_second=speed,
            idle_fraction=last.idle_fraction if last else None,
            eta_seconds=(steps - step) * pace if pace and steps else None,
            waiting_for=report.waiting_for if report and report.step >= step else "",  # else it is older than the step
            checkpoint_step=_saved(job, report),
            layout=report.layout_summary if report else "",
            new_steps=new_steps,
            new_events=new_events,
            events=tuple(self._shown),
            known_until=known_until,
            last=last,
            evaluation_loss=self._evaluation_loss if self._evaluation_loss is not None else _reported(report),
        )


def _done(last: StepLine | None, report: JobReport | None) -> int:
    """Steps that are done. A newer world than that of the last line may do steps again."""
    if report and (last is None or report.generation > last.worldGeneration):
        return report.step
    return last.step + 1 if last else 0


def _reported(report: JobReport | None) -> float | None:
    return report.evaluation_loss if report else None


def _saved(job: Manifest, report: JobReport | None) -> int:
    """Returns the last checkpoint's step, -1 without one.

    The coordinator's last report reaches the job's status alone.
    """
    known: int = job.get("status", {}).get("lastCheckpoint", {}).get("step", -1)
    return max(known, report.checkpoint_step if report else -1)


def _speed(steps: deque[StepLine]) -> tuple[float, float]:
    """Returns tokens a second and seconds a step over the latest steps."""
    seconds = sum(s.seconds for s in steps)
    if not seconds:
        return 0.0, 0.0
    return sum(s.tokens for s in steps) / seconds, seconds / len(steps)


def duration(seconds: float) -> str:
    """Formats seconds: 42 s, 3 m 07 s, 2 h 05 m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} m"


def amount(number: float) -> str:
    """Formats a number: 812, 12.3 k, 4.56 M."""
    for least, size, unit, digits in _AMOUNTS:
        if number >= least:
            return f"{number / size:.{digits}f} {unit}"
    return f"{number:.0f}"


def clock(seconds: float) -> str:
    """Local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))
