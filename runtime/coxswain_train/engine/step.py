"""One step on one rank: runs the plan's operations; gradients accumulate in the parameters.

A replica without tasks runs nothing here (no dummy forward); it joins the reduction with zeros.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from coxswain.plan.values import Operation, Slice, Task
from coxswain.wire import TaskTiming
from coxswain_train.engine.memory import MemoryPolicy
from coxswain_train.model.attention import TaskAttention, pack_attention
from coxswain_train.model.llama import Decoder
from coxswain_train.model.ring import Exchange, Ring, ring_attention
from coxswain_train.parallel.clock import DeviceClock, Mark


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
    """What a step leaves besides gradients. Nothing waits for the device until it is read."""

    losses: list[Tensor] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @property
    def loss_sum(self) -> float:
        """Of this rank's tokens, not divided."""
        return sum((float(loss) for loss in self.losses), 0.0)


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


def attend_of(part: Part, replica: int, exchange_of: ExchangeOf) -> TaskAttention:
    """The attention of a part: of a pack within this replica, of a ring together with its other members."""
    task = part.task
    if task.kind == "pack":
        return pack_attention([s.stop - s.start for s in part.slices])
    chunks = tuple(tuple((s.start, s.stop) for s in task.slices if s.replica == member) for member in task.replicas)
    return ring_attention(Ring(task.replicas.index(replica), chunks, exchange_of(task.replicas)))


class TaskRunner:
    """Runs operations on a model. `scale` is 1 / (valid tokens of the whole step), the same on every rank."""

    def __init__(
        self, model: Decoder, batch: Batch, scale: float, replica: int, exchange_of: ExchangeOf,
        memory: MemoryPolicy | None = None,
    ) -> None:  # fmt: skip
        self._model, self._batch, self._scale, self._memory = model, batch, scale, memory or MemoryPolicy()
        self._replica, self._exchange_of = replica, exchange_of
        self._losses: dict[int, Tensor] = {}  # of tasks whose backward is still to come: they hold the graph

    def forward(self, part: Part) -> Tensor:
        """Returns the sum of the part's token losses, which the device may still be computing."""
        rows = slice(part.start, part.stop)
        attend = attend_of(part, self._replica, self._exchange_of)
        rotary = self._model.rotary(self._batch.positions[rows])
        hidden = self._model.embed(self._batch.tokens[rows])
        memory = self._memory.begin(part.task, self._model, rotary)
        for layer in self._model.stack:
            hidden = memory.run_layer(layer, hidden, rotary, attend)
        loss = self._model.token_losses(hidden, self._batch.labels[rows])
        self._losses[part.task.index] = loss
        return loss.detach()

    def backward(self, part: Part) -> None:
        (self._losses.pop(part.task.index) * self._scale).backward()  # type: ignore[no-untyped-call]


Span = tuple[Operation, Mark, Mark, int, int]  # an operation: its begin, its end, and the numbers of its waits


class StepClock:
    """Seconds since the step began (`began`: by time.perf_counter). Reads the device's marks when they are asked for."""

    def __init__(self, device: DeviceClock, began: float) -> None:
        self.device = device
        device.reset()
        self._zero, self._offset = device.mark(), time.perf_counter() - began

    def timings(self, spans: Sequence[Span]) -> tuple[TaskTiming, ...]:
        return tuple(
            TaskTiming(o.task, o.kind, self.since(start), self.since(stop), self.device.waited(first, last))
            for o, start, stop, first, last in spans
        )

    def since(self, mark: Mark) -> float:
        return self._offset + self.device.between(self._zero, mark)


def run_operations(
    runner: TaskRunner,
    mine: dict[int, Part],
    operations: Sequence[Operation],
    accumulate: Callable[[], None],
    clock: DeviceClock,
) -> StepOutcome:
    """Runs this stage's operations in the plan's order; calls `accumulate` after each backward."""
    outcome = StepOutcome()
    for operation in operations:
        part, start, first = mine[operation.task], clock.mark(), len(clock.waits)
        if operation.kind == "F":
            outcome.losses.append(runner.forward(part))
        else:
            runner.backward(part)
            accumulate()
        outcome.spans.append((operation, start, clock.mark(), first, len(clock.waits)))
    return outcome
