"""One step on one rank: runs the plan's operations; gradients accumulate in the parameters.

A replica without tasks runs nothing here (no dummy forward); it joins the reduction with zeros.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coxswain.plan.values import Operation, Slice, Task
from coxswain.wire import TaskTiming
from coxswain_train.model.attention import pack_attention
from coxswain_train.model.llama import AttentionFn, Decoder
from coxswain_train.model.ring import Exchange, Ring, ring_attention


@dataclass(frozen=True, slots=True)
class Part:
    """One replica's share of a task: its slices, which are [start, stop) of the step's arrays."""

    task: Task
    slices: tuple[Slice, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A replica's tokens of a step in task order, int64 [tokens]; label -100: none."""

    tokens: Tensor
    labels: Tensor
    positions: Tensor


@dataclass(slots=True)
class StepOutcome:
    """What a step leaves besides gradients. `loss_sum`: of this rank's tokens, not divided."""

    loss_sum: float = 0.0
    timings: list[TaskTiming] = field(default_factory=list)


# From the members of a ring (replicas in ring order) to their exchange of tensors.
ExchangeOf = Callable[[tuple[int, ...]], Exchange]


def parts(tasks: Iterable[Task], replica: int) -> dict[int, Part]:
    """The tasks in which a replica takes part, by index, also where it holds no token of a very short ring."""
    found, start = {}, 0
    for task in tasks:
        if replica in task.replicas:
            mine = tuple(s for s in task.slices if s.replica == replica)
            stop = start + sum(s.stop - s.start for s in mine)
            found[task.index] = Part(task, mine, start, stop)
            start = stop
    return found


def attend_of(part: Part, replica: int, exchange_of: ExchangeOf) -> AttentionFn:
    """The attention of a part: of a pack within this replica, of a ring together with its other members."""
    task = part.task
    if task.kind == "pack":
        return pack_attention([s.stop - s.start for s in part.slices])
    chunks = tuple(tuple((s.start, s.stop) for s in task.slices if s.replica == member) for member in task.replicas)
    return ring_attention(Ring(task.replicas.index(replica), chunks, exchange_of(task.replicas)))


class TaskRunner:
    """Runs operations on a model. `scale` is 1 / (valid tokens of the whole step), the same on every rank."""

    def __init__(self, model: Decoder, batch: Batch, scale: float, replica: int, exchange_of: ExchangeOf) -> None:
        self._model, self._batch, self._scale = model, batch, scale
        self._replica, self._exchange_of = replica, exchange_of
        self._losses: dict[int, Tensor] = {}  # of tasks whose backward is still to come: they hold the graph

    def forward(self, part: Part) -> float:
        """Returns the sum of the part's token losses."""
        rows = slice(part.start, part.stop)
        attend = attend_of(part, self._replica, self._exchange_of)
        rotary = self._model.rotary(self._batch.positions[rows])
        hidden = self._model.embed(self._batch.tokens[rows])
        for layer in self._model.stack:
            hidden = layer(hidden, rotary, attend)
        loss = self._model.token_losses(hidden, self._batch.labels[rows])
        self._losses[part.task.index] = loss
        return float(loss.detach())

    def backward(self, part: Part) -> None:
        (self._losses.pop(part.task.index) * self._scale).backward()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class StepClock:
    """Seconds since the step began, and those among them spent waiting for ring peers."""

    waited: Callable[[], float]
    began: float  # by time.perf_counter

    def now(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a launched kernel is not yet a computed one
        return time.perf_counter() - self.began


def run_operations(
    runner: TaskRunner,
    mine: dict[int, Part],
    operations: Sequence[Operation],
    accumulate: Callable[[], None],
    clock: StepClock,
    expect_last: Callable[[], None] = lambda: None,
) -> StepOutcome:
    """Runs this stage's operations in the plan's order; calls `accumulate` after each backward, `expect_last` before the last."""
    outcome = StepOutcome()
    last = max((number for number, operation in enumerate(operations) if operation.kind == "B"), default=-1)
    for number, operation in enumerate(operations):
        if number == last:
            expect_last()
        part, start, waited = mine[operation.task], clock.now(), clock.waited()
        if operation.kind == "F":
            outcome.loss_sum += runner.forward(part)
        else:
            runner.backward(part)
            accumulate()
        timing = TaskTiming(operation.task, operation.kind, start, clock.now(), clock.waited() - waited)
        outcome.timings.append(timing)
    return outcome
