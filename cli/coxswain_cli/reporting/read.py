"""Reads a work directory into a `Run`. A kill may cut any line: unreadable lines are counted.

Files are read line by line, and of the timings only the lines that are pictured: a long run's would not fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from coxswain.config import JobConfig
from coxswain.errors import Refused
from coxswain.membership.mix_record import record_of
from coxswain.structs import UNDECODABLE
from coxswain.trainer_figures import WINDOW_STEPS
from coxswain_cli.kept_steps import kept_steps
from coxswain_cli.reporting.formatting import seconds_of
from coxswain_cli.reporting.lines import Lines, LineTokens
from coxswain_cli.reporting.model import (
    EVENTS,
    STEPS,
    TIMINGS,
    Glance,
    MixInForce,
    RecordedEvent,
    RecordedRun,
    RecordedStep,
    SourceTokens,
    StepTiming,
)
from coxswain_cli.reporting.step_selection import chosen_steps
from coxswain_cli.reporting.trainers import latest_figures
from coxswain_operator.reconcile.status import JobStatus

T = TypeVar("T")

StepsRead = tuple[tuple[RecordedStep, ...], int, int]
"""Each step once, in order; how many lines are of steps computed again, and unreadable."""


def read_run(directory: Path, wanted: tuple[int, ...] = ()) -> RecordedRun:
    """Returns the run with the timings of the steps that are `wanted`, or of selected ones.

    Raises Refused when the folder holds neither steps nor events, or a wanted step has no timings.
    """
    if not (directory / STEPS).exists() and not (directory / EVENTS).exists():
        raise Refused(
            "NoRun",
            f"{directory}: holds neither {STEPS} nor {EVENTS}; name the work directory of a run (`cox run` prints it, "
            "by default runs/JOB)",
        )
    lines, bad_steps = _good(_with_lines(directory / STEPS, _values(directory / STEPS, RecordedStep)))
    steps, redone = _valid(lines)
    events, bad_events = _good(_values(directory / EVENTS, _EventLine))
    offsets, rings, bad_timings = _glances(directory / TIMINGS)
    chosen = chosen_steps(steps, rings, wanted)
    job = mounted_job(_objects(directory / "cluster", "ConfigMap"))
    latest_timings = (_timing(directory / TIMINGS, step, offsets[step]) for step in sorted(offsets)[-WINDOW_STEPS:])
    training = next(_whole(_objects(directory / "cluster", "TrainingJob"), _Job), None)
    return RecordedRun(
        name=job.name if job else training["metadata"]["name"] if training else directory.resolve().name,
        steps=steps,
        events=tuple(RecordedEvent(seconds_of(e.time), e.reason, e.message, e.object) for e in events),
        chosen=tuple((_timing(directory / TIMINGS, step, offsets[step]), why) for step, why in chosen),
        trainers=latest_figures(latest_timings),
        job=job,
        status=(training or {}).get("status") or {},
        redone=redone,
        unreadable=bad_steps + bad_events + bad_timings,
        mixes=mixes_of(job),
    )


def read_steps(lines: Iterable[bytes]) -> StepsRead:
    """Of a checkpoint location.

    Its objects are in the order of their steps: the world says which line was written later.
    """
    decoder = msgspec.json.Decoder(RecordedStep)
    found, unreadable = _good(_packed((0, _decoded(decoder, line)) for line in lines if line.strip()))
    return *_valid(sorted(found, key=lambda line: line.worldGeneration)), unreadable


def _packed(values: Iterable[tuple[int, RecordedStep | None]]) -> Iterator[tuple[int, RecordedStep | None]]:
    """With the tokens of their sources as an array: with 300 sources those of a long run would not fit in memory."""
    for offset, step in values:
        yield offset, step and msgspec.structs.replace(step, tokens_by_source=SourceTokens(step.tokens_by_source))


def _with_lines(
    path: Path, values: Iterable[tuple[int, RecordedStep | None]]
) -> Iterator[tuple[int, RecordedStep | None]]:
    """With the places of their lines in place of the tokens of their sources, which are read where they are summed up."""
    lines = Lines(path) if path.exists() else None
    for offset, step in values:
        if step is not None and lines is not None and step.tokens_by_source:
            step = msgspec.structs.replace(step, tokens_by_source=LineTokens(lines, offset))
        yield offset, step


def _valid(lines: list[RecordedStep]) -> tuple[tuple[RecordedStep, ...], int]:
    """The lines that count, and how many are of steps computed again."""
    return tuple(kept_steps(lines)), len(lines) - len({line.step for line in lines})


def mixes_of(job: JobConfig | None) -> tuple[MixInForce, ...]:
    """The job's mix as it is now, for all steps."""
    return () if job is None else (MixInForce(0, record_of(job.mix, 0)),)


class _Metadata(msgspec.Struct):
    name: str
    creationTimestamp: str | None = None  # the objects' own spelling


class _Job(msgspec.Struct):
    metadata: _Metadata
    status: JobStatus | None = None


class _ConfigMap(msgspec.Struct):
    metadata: _Metadata
    data: dict[str, str] | None = None
    immutable: bool | None = None


class _Place(NamedTuple):
    """A line of `timings.jsonl`."""

    step: int
    offset: int
    longest_ring: int


class _EventLine(msgspec.Struct, frozen=True):
    time: float | str | None = None  # the cluster writes ISO 8601
    reason: str = ""
    message: str = ""
    object: str = ""


def _values(path: Path, type_: type[T]) -> Iterator[tuple[int, T | None]]:
    """Yields (offset, value) of each line; None where it is no such value. Skips a torn last line."""
    if not path.exists():
        return
    decoder, offset = msgspec.json.Decoder(type_), 0
    with path.open("rb") as file:
        for line in file:
            value = _decoded(decoder, line)
            if line.strip() and (value is not None or line.endswith(b"\n")):
                yield offset, value
            offset += len(line)


def _decoded(decoder: msgspec.json.Decoder[T], line: bytes) -> T | None:
    try:
        return decoder.decode(line)
    except UNDECODABLE:
        return None


def _good(values: Iterable[tuple[int, T | None]]) -> tuple[list[T], int]:
    """The values, and how many lines were none."""
    found = [value for _, value in values]
    good = [value for value in found if value is not None]
    return good, len(found) - len(good)


def _glances(path: Path) -> tuple[dict[int, int], dict[int, int], int]:
    """By step: where its valid line begins, and the degree of its longest ring. And how many lines are unreadable."""
    places, bad = _good(_places(path))
    kept = kept_steps(places)
    return {p.step: p.offset for p in kept}, {p.step: p.longest_ring for p in kept}, bad


def _places(path: Path) -> Iterator[tuple[int, _Place | None]]:
    for offset, glance in _values(path, Glance):
        yield offset, None if glance is None else _Place(glance.step, offset, glance.longest_ring)


def _timing(path: Path, step: int, offset: int) -> StepTiming:
    """The line at `offset`; nothing but its step where it has an unknown shape, or the file was shortened meanwhile."""
    with path.open("rb") as file:
        file.seek(offset)
        line = file.readline()
    found = _decoded(msgspec.json.Decoder(StepTiming), line)
    return found if found is not None and found.step == step else StepTiming(step)


def _objects(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Returns the local cluster's objects of one kind. Never one with secrets: reports are shared."""
    decoder = msgspec.json.Decoder(dict[str, Any])
    for path in sorted(folder.glob(f"{kind}/*/*.json")):
        value = _decoded(decoder, path.read_bytes())
        if value is not None:
            yield value


def _whole(objects: Iterable[dict[str, Any]], type_: type) -> Iterator[dict[str, Any]]:
    """Those that have this shape: a damaged one is as one that is not there."""
    for value in objects:
        with suppress(msgspec.ValidationError):
            msgspec.convert(value, type_)
            yield value


def mounted_job(config_maps: Iterable[dict[str, Any]]) -> JobConfig | None:
    """The resolved job from the newest ConfigMap that pods mount: with the mix as it is now."""
    mounted = (value for value in _whole(config_maps, _ConfigMap) if not value.get("immutable"))
    found = [(_created(value), text) for value in mounted if (text := (value.get("data") or {}).get("job.json"))]
    return _decoded(msgspec.json.Decoder(JobConfig), max(found)[1].encode()) if found else None


def _created(value: dict[str, Any]) -> str:
    return str(value["metadata"].get("creationTimestamp") or "")
