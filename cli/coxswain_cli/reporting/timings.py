"""One line of `timings.jsonl` -> `StepTiming`. Lenient: the picture of a step is worth less than the report of the run."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from coxswain_cli.reporting.record import Operation, PlannedTask, RankTiming, StepTiming


class _Planned(msgspec.Struct, frozen=True):
    index: int
    kind: Literal["pack", "ring"]
    replicas: tuple[int, ...]
    start: float
    stop: float
    sequence: int = -1


class _Rank(msgspec.Struct, frozen=True):
    rank: int
    timings: tuple[tuple[int, str, float, float, float], ...] = ()  # wire.TaskTiming
    seconds: float = 0.0
    data_wait_seconds: float = 0.0
    compute_seconds: float = 0.0
    reduce_seconds: float = 0.0


class _Line(msgspec.Struct, frozen=True):
    step: int
    planned: tuple[_Planned, ...] = ()
    ranks: tuple[_Rank, ...] = ()


def parse_timing(value: Any) -> StepTiming | None:
    """None when the line is no such object."""
    try:
        line = msgspec.convert(value, _Line)
    except msgspec.ValidationError:
        return None
    planned = tuple(PlannedTask(t.index, t.kind, t.replicas, t.start, t.stop, t.sequence) for t in line.planned)
    return StepTiming(line.step, planned, tuple(map(_rank, line.ranks)))


def _rank(r: _Rank) -> RankTiming:
    operations = tuple(Operation(*t) for t in r.timings)
    return RankTiming(r.rank, operations, r.seconds, r.data_wait_seconds, r.compute_seconds, r.reduce_seconds)
