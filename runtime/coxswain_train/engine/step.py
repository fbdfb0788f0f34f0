"""One step on one rank: runs its stage's operations; gradients accumulate in the parameters.

A replica without tasks runs nothing here (no dummy forward); it joins the reduction with zeros. Activations come from
the stage before and go to the stage after, gradients the other way round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol

import torch
from torch import Tensor

from coxswain.errors import Refused
from coxswain.plan.values import Operation, Slice, Task
from coxswain.wire import TaskTiming
from coxswain_train.engine.links import Coming, StageLinks
from coxswain_train.engine.memory import MemoryPolicy
from coxswain_train.model.attention import TaskAttention, pack_attention
from coxswain_train.model.llama import Decoder
from coxswain_train.model.ring import Chunk, Chunks, Exchange, Ring, ring_attention
from coxswain_train.model.ulysses import ulysses_attention
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
    """A replica's tokens of a step in task order, int64 [tokens]; label -100: none.

    The first stage alone reads tokens, the last one labels: elsewhere they may be empty.
    """

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
    place, table = task.replicas.index(replica), chunk_table(task)
    if task.ulysses:
        members = task.replicas
        return ulysses_attention(
            place, table, task.ulysses, lambda places: exchange_of(tuple(members[p] for p in places))
        )
    return ring_attention(Ring(place, table, exchange_of(task.replicas)))


def chunk_table(task: Task) -> tuple[tuple[Chunks, ...], ...]:
    """Per sequence of a ring, in the plan's order, the chunks of each member. Slices come sequence by sequence."""
    chunks: dict[int, dict[int, list[Chunk]]] = {}
    for s in task.slices:
        chunks.setdefault(s.sequence, {member: [] for member in task.replicas})[s.replica].append((s.start, s.stop))
    return tuple(tuple(tuple(mine) for mine in members.values()) for members in chunks.values())


class TaskRunner:
    """Runs tasks on a rank's part of a model. `scale` is 1 / (valid tokens of the whole step), the same on every rank.

    `last`: this stage has the losses. `exchange_of`: from replicas to the ring of this rank and its like on them.
    """

    def __init__(
        self, model: Decoder, batch: Batch, scale: float, replica: int, exchange_of: ExchangeOf, last: bool = True,
        memory: MemoryPolicy | None = None,
    ) -> None:  # fmt: skip
        self._model, self._batch, self._scale, self._last = model, batch, scale, last
        self._memory = memory or MemoryPolicy()
        self._replica, self._exchange_of = replica, exchange_of
        # Input from another stage, and output, of tasks whose backward is still to come: the output holds the graph.
        self._held: dict[int, tuple[Tensor | None, Tensor]] = {}

    def forward(self, part: Part, received: Tensor | None = None) -> tuple[Tensor | None, Tensor | None]:
        """The sum of the part's token losses (of the last stage), and the output for the next stage (of the others).

        The device may still be computing them.
        """
        rows = slice(part.start, part.stop)
        attend = attend_of(part, self._replica, self._exchange_of)
        rotary = self._model.rotary(self._batch.positions[rows])
        hidden = self._embed(rows) if received is None else received.requires_grad_()
        memory = self._memory.begin(part.task, self._model, rotary)
        for layer in self._model.stack:
            hidden = memory.run_layer(layer, hidden, rotary, attend)
        output = self._loss(hidden, rows) if self._last else hidden
        if torch.is_grad_enabled():
            self._held[part.task.index] = received, output
        return (output.detach(), None) if self._last else (None, output.detach())

    def _loss(self, hidden: Tensor, rows: slice) -> Tensor:
        """Refuses what a model of the user's own may give in place of one number with a gradient."""
        loss = self._model.token_losses(hidden, self._batch.labels[rows])
        if loss.numel() != 1:
            raise Refused(
                "BadModel", f"token_losses gave a tensor of shape {list(loss.shape)}; give the sum of the losses"
            )
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise Refused("BadModel", "token_losses gave a sum without a gradient; detach nothing that it follows from")
        return loss

    def _embed(self, rows: slice) -> Tensor:
        return self._model.embed(self._batch.tokens[rows], self._batch.positions[rows])

    def backward(self, part: Part, received: Tensor | None = None) -> Tensor | None:
        """The gradient of the task's input, for the stage before; None on the first. `received`: that of its output."""
        given, output = self._held.pop(part.task.index)
        if self._last:
            output = output * self._scale
        output.backward(received)  # type: ignore[no-untyped-call]
        return None if given is None else given.grad


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


class GradientSums(Protocol):
    """Where the gradients of backwards go."""

    def expect_last(self) -> None:
        """The next backward is the step's last."""
        ...

    def accumulate(self) -> None:
        """A backward has ended."""
        ...


def run_operations(
    runner: TaskRunner,
    links: StageLinks,
    mine: dict[int, Part],
    operations: Sequence[Operation],
    gradients: GradientSums,
    clock: DeviceClock,
    *,
    more: bool = False,
) -> StepOutcome:
    """Runs this stage's operations in the plan's order; calls `accumulate` after each backward, `expect_last` before the last.

    What an operation sends leaves in one batch with what the next one receives: the order that plans are checked for.
    `more`: waves follow, so that no gradient may leave yet.
    """
    outcome = StepOutcome()
    coming = [Coming(o, mine[o.task].stop - mine[o.task].start) for o in operations]
    last = max((number for number, operation in enumerate(operations) if operation.kind == "B"), default=-1)
    links.trade(None, None, coming[0] if coming else None)
    for number, (operation, following) in enumerate(zip_longest(operations, coming[1:])):
        if number == last and not more:
            gradients.expect_last()
        part, start, first = mine[operation.task], clock.mark(), len(clock.waits)
        received = links.received(operation)
        if operation.kind == "F":
            loss, leaving = runner.forward(part, received)
            outcome.losses += [] if loss is None else [loss]
        else:
            leaving = runner.backward(part, received)
            gradients.accumulate()
        links.trade(operation, leaving, following)
        outcome.spans.append((operation, start, clock.mark(), first, len(clock.waits)))
    links.finish()
    return outcome


def run_waves(
    runner: TaskRunner,
    links: StageLinks,
    mine: dict[int, Part],
    waves: Sequence[Sequence[Operation]],
    gradients: GradientSums,
    clock: DeviceClock,
    barrier: Callable[[], None],
) -> StepOutcome:
    """Runs the stage's operations of each wave. Between two waves it passes a barrier of all ranks, also without operations."""
    outcome = StepOutcome()
    for number, operations in enumerate(waves):
        if number:
            barrier()
        found = run_operations(runner, links, mine, operations, gradients, clock, more=number + 1 < len(waves))
        outcome.losses += found.losses
        outcome.spans += found.spans
    return outcome


def by_wave(mine: dict[int, Part], operations: Sequence[Operation], waves: int) -> list[list[Operation]]:
    """Cuts the stage's operations at the step's waves. A list that goes back to an earlier wave is not drained: ValueError."""
    found: list[list[Operation]] = [[] for _ in range(waves)]
    latest = 0
    for operation in operations:
        wave = mine[operation.task].task.wave or 0
        if not latest <= wave < waves:
            raise ValueError(f"{operation.kind} of task {operation.task}: wave {wave} of {waves} after wave {latest}")
        found[wave].append(operation)
        latest = wave
    return found
