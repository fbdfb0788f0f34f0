"""Reads a work directory into a `Run`. A run may have been killed at any byte: what cannot be read is counted, not fatal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from coxswain.config import JobConfig
from coxswain.errors import Refused
from coxswain_cli.reporting.record import Event, Run, Step, StepTiming

T = TypeVar("T")

STEPS, EVENTS, TIMINGS = "steps.jsonl", "events.jsonl", "timings.jsonl"


def read_run(directory: Path) -> Run:
    """Raises Refused when the folder holds neither steps nor events of a run."""
    if not (directory / STEPS).exists() and not (directory / EVENTS).exists():
        raise Refused(
            "NoRun",
            f"{directory}: holds neither {STEPS} nor {EVENTS}; name the work directory of a run (`cox run` prints it, "
            "by default runs/JOB)",
        )
    lines, bad_steps = _converted(directory / STEPS, Step)
    steps = {line.step: line for line in lines}  # a redone step appends a line: the last one is valid
    timings, bad_timings = _converted(directory / TIMINGS, StepTiming)
    events, bad_events = _events(directory / EVENTS)
    job = _job(_objects(directory / "cluster", "ConfigMap"))
    training = next(_objects(directory / "cluster", "TrainingJob"), {})
    return Run(
        name=job.name if job else training.get("metadata", {}).get("name", directory.resolve().name),
        steps=tuple(steps[k] for k in sorted(steps)),
        events=events,
        timings={t.step: t for t in timings},
        job=job,
        status=training.get("status") or {},
        redone=len(lines) - len(steps),
        unreadable=bad_steps + bad_timings + bad_events,
    )


def _lines(path: Path) -> tuple[list[Any], int]:
    """The values of a JSON-lines file, and how many lines are none. A torn last line is what a kill leaves: not counted."""
    if not path.exists():
        return [], 0
    *whole, torn = path.read_bytes().split(b"\n")
    values, bad = [], 0
    for line in (*whole, torn):
        try:
            if line.strip():
                values.append(json.loads(line))
        except ValueError:
            bad += line is not torn
    return values, bad


def _converted(path: Path, type_: type[T]) -> tuple[list[T], int]:
    """The lines as values of a type, and how many are none."""
    values, bad = _lines(path)
    good: list[T] = []
    for value in values:
        try:
            good.append(msgspec.convert(value, type_))
        except msgspec.ValidationError:
            bad += 1
    return good, bad


def _events(path: Path) -> tuple[tuple[Event, ...], int]:
    values, bad = _lines(path)
    events = [_event(v) for v in values if isinstance(v, dict)]
    return tuple(events), bad + len(values) - len(events)


def _event(value: dict[str, Any]) -> Event:
    texts = [str(value.get(key) or "") for key in ("reason", "message", "object")]
    return Event(_seconds(value.get("time")), *texts)


def _seconds(time: object) -> float:
    """Seconds since 1970 of a number or an ISO 8601 text; 0 when it is neither."""
    if isinstance(time, int | float):
        return float(time)
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except ValueError:
        return 0.0


def _objects(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """The local cluster's objects of one kind. Only kinds without secrets are ever asked for: people pass reports on."""
    for path in sorted(folder.glob(f"{kind}/*/*.json")):
        try:
            value = json.loads(path.read_bytes())
        except (ValueError, OSError):
            continue
        if isinstance(value, dict):
            yield value


def _job(config_maps: Iterator[dict[str, Any]]) -> JobConfig | None:
    """The resolved job from its ConfigMap."""
    for value in config_maps:
        text = (value.get("data") or {}).get("job.json")
        if text:
            try:
                return msgspec.json.decode(text, type=JobConfig)
            except msgspec.MsgspecError:
                return None
    return None
