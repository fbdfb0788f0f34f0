"""The values of a report, independent of files. Fields that a file may lack have defaults."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from coxswain.config import JobConfig
from coxswain.membership.values import MixRecord
from coxswain.trainer_figures import TrainerFigures
from coxswain.wire import TaskTiming

STEPS, EVENTS, TIMINGS = "steps.jsonl", "events.jsonl", "timings.jsonl"
"""Files of a work directory."""

Number = Annotated[int, msgspec.Meta(ge=0, le=99_999)]
"""Of a rank, a replica and so on. A row is drawn for each: a damaged line has no more of them than memory holds."""
NumberOrNone = Annotated[int, msgspec.Meta(ge=-1, le=99_999)]
"""-1: not recorded."""


Value = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]
"""Such as seconds or a loss: a damaged line has none of which sums have no number."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Such as tokens."""


class SourceTokens(Mapping[str, int]):
    """Tokens by source: eight bytes each, for most steps of a run have the same sources, whose names are kept once."""

    __slots__ = ("_places", "_tokens")
    _known: ClassVar[dict[tuple[str, ...], dict[str, int]]] = {}

    def __init__(self, tokens: Mapping[str, int]) -> None:
        names = tuple(tokens)
        if names not in self._known:
            self._known[names] = {name: place for place, name in enumerate(names)}
        self._places, self._tokens = self._known[names], array("q", tokens.values())

    def __getitem__(self, name: str) -> int:
        return self._tokens[self._places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class RecordedStep(msgspec.Struct, frozen=True):
    """One line of `steps.jsonl`, read leniently: a diverged run writes null losses, an older one has fewer fields."""

    step: Count
    worldGeneration: Count = 0  # the file's own spelling
    tokens: Count = 0
    sequences: Count = 0
    loss: Value | None = None
    stream_digest: str = ""
    delivered_digest: str = ""
    seconds: Value = 0.0
    idle_fraction: Value = 0.0
    makespan_over_bound: Value = 0.0
    gradient_norm: Value | None = None
    learning_rate: Value = 0.0
    tokens_by_source: Mapping[str, Count] = {}
    data_wait_seconds: Value = 0.0
    time: Value = 0.0
    mfu: Value | None = None
    evaluation_loss: Value | None = None
    evaluation_tokens: Count = 0
    evaluation_seconds: Value = 0.0
    planned_seconds: Value = 0.0


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """One line of `events.jsonl`; `time` in seconds since 1970."""

    time: float
    reason: str
    message: str
    object: str = ""


class PlannedTask(msgspec.Struct, frozen=True):
    """A task as it was planned, in seconds since the step's begin on the cost model."""

    task: Count
    kind: Literal["pack", "ring"]
    replicas: tuple[Number, ...]
    start: Value
    stop: Value
    sequences: tuple[int, ...] = ()  # positions in the membership
    tokens: Count = 0


class MeasuredPass(TaskTiming, frozen=True, array_like=True):
    """An operation as a worker has sent it, its times bounded."""

    task: Count
    kind: Literal["F", "B"]
    start: Value
    stop: Value
    waited: Value = 0.0


class RankTiming(msgspec.Struct, frozen=True):
    """What one rank did in a step, in seconds since its own begin of the step."""

    rank: Number
    timings: tuple[MeasuredPass, ...] = ()
    data_wait: Value = 0.0
    reduce: Value = 0.0
    replica: NumberOrNone = -1
    trainer: NumberOrNone = -1
    seconds: Value = 0.0  # of the whole step
    compute: Value = 0.0
    stage: Number = 0
    tensor: Number = 0
    share: Value = 1.0  # of a task's planned seconds: 1 on the replica's slowest stage


class StepTiming(msgspec.Struct, frozen=True):
    """One line of `timings.jsonl`, as far as the pictures need it."""

    step: Count
    planned: tuple[PlannedTask, ...] = ()
    ranks: tuple[RankTiming, ...] = ()


class GlanceTask(msgspec.Struct, frozen=True):
    replicas: tuple[Number, ...]


class Glance(msgspec.Struct, frozen=True):
    """What the selection of steps needs of a line of `timings.jsonl`."""

    step: Count
    planned: tuple[GlanceTask, ...] = ()

    @property
    def longest_ring(self) -> int:
        """The highest degree among the step's rings; 1 where all tasks are packs."""
        return max((len(t.replicas) for t in self.planned), default=1)


@dataclass(frozen=True, slots=True)
class MixInForce:
    """A mix record and the first step that it holds for."""

    first_step: int
    record: MixRecord


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A whole run. Each step once, in order; `chosen` are the steps to draw, with reasons."""

    name: str
    steps: tuple[RecordedStep, ...] = ()
    events: tuple[RecordedEvent, ...] = ()
    chosen: tuple[tuple[StepTiming, str], ...] = ()
    trainers: tuple[TrainerFigures, ...] = ()  # over the latest steps, the slowest first
    job: JobConfig | None = None
    status: dict[str, Any] = field(default_factory=dict)  # the TrainingJob's
    redone: int = 0  # lines of steps that were computed again
    unreadable: int = 0  # lines that are no JSON of the expected shape, a torn last line not counted
    mixes: tuple[MixInForce, ...] = ()  # in the order of their first steps; empty: unknown
    notes: tuple[str, ...] = ()  # sentences on what the reader could not see

    @property
    def missing(self) -> int:
        """Steps up to the last one that have no line: totals lack them."""
        return self.steps[-1].step + 1 - len(self.steps) if self.steps else 0
