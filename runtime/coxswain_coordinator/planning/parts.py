"""Cuts plans: each rank and each trainer gets its own part of a plan, encoded once. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from coxswain.layout import Seat
from coxswain.plan.values import Task
from coxswain.structs import prepare
from coxswain.wire import End, Evaluation, StepPlan

Whole = TypeVar("Whole", StepPlan, Evaluation)


class EncodedPlans(msgspec.Struct, frozen=True):
    """StepPlans, whose plans are encoded already."""

    plans: tuple[msgspec.Raw, ...]


class EncodedDirective(msgspec.Struct, frozen=True):
    """StepDirective, whose plan is encoded already."""

    step: int
    checkpoint: bool
    end: End
    plan: msgspec.Raw | None
    probe: bool | UnsetType = UNSET


class PlanParts:
    """The parts of one plan. All tensor ranks of a stage have the same part."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self._encoded: dict[Hashable, msgspec.Raw] = {}

    def of_seat(self, seat: Seat) -> msgspec.Raw:
        """The encoded part of a rank."""
        return self._part((seat.replica, seat.stage), lambda: self._seat_part(seat))

    def of_replicas(self, replicas: frozenset[int]) -> msgspec.Raw:
        """The encoded part of a constructor: of all replicas of its trainer."""
        return self._part(replicas, lambda: self._trainer_part(replicas))

    def _part(self, key: Hashable, cut: Callable[[], StepPlan]) -> msgspec.Raw:
        if key not in self._encoded:
            self._encoded[key] = msgspec.Raw(msgspec.json.encode(cut()))
        return self._encoded[key]

    def _seat_part(self, seat: Seat) -> StepPlan:
        follows = self._evaluation and replace(self._evaluation.whole, **self._evaluation.of_seat(seat))
        return replace(self.plan, **self._step.of_seat(seat), evaluation=follows, speeds=())

    def _trainer_part(self, replicas: Collection[int]) -> StepPlan:
        follows = self._evaluation and replace(self._evaluation.whole, **self._evaluation.of_replicas(replicas))
        return replace(self.plan, **self._step.of_replicas(replicas), evaluation=follows, speeds=())

    @cached_property
    def _step(self) -> _Members[StepPlan]:
        return _Members(self.plan)

    @cached_property
    def _evaluation(self) -> _Members[Evaluation] | None:
        return None if self.plan.evaluation is None else _Members(self.plan.evaluation)


class _Members(Generic[Whole]):
    """Tasks and operations of a step, or of the evaluation behind it, by member: the fields of each one's part."""

    def __init__(self, whole: Whole) -> None:
        self.whole: Whole = whole
        self._tasks: dict[int, list[Task]] = defaultdict(list)  # by replica, in the plan's order
        for task in whole.tasks:
            for replica in task.replicas:
                self._tasks[replica].append(task)
        self._operations = {(s.replica, s.stage): s for s in whole.operations}

    def of_seat(self, seat: Seat) -> dict[str, Any]:
        stage = self._operations.get((seat.replica, seat.stage))
        tasks = tuple(self._tasks.get(seat.replica, ()))
        return {"sequences": (), "tasks": tasks, "operations": (stage,) if stage else ()}

    def of_replicas(self, replicas: Collection[int]) -> dict[str, Any]:
        by_index = {t.index: t for replica in replicas for t in self._tasks.get(replica, ())}
        tasks = tuple(_slices_of(by_index[index], replicas) for index in sorted(by_index))
        places = tuple(sorted({s.sequence for t in tasks for s in t.slices}))
        sequences = tuple(self.whole.sequence(place) for place in places)
        return {"sequences": sequences, "tasks": tasks, "operations": (), "places": places}


def _slices_of(task: Task, replicas: Collection[int]) -> Task:
    """The task with the slices of these replicas alone."""
    mine = tuple(s for s in task.slices if s.replica in replicas)
    return task if len(mine) == len(task.slices) else replace(task, slices=mine)


prepare(__name__)
