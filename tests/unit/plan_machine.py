"""A slow machine that walks a plan rank by rank, message by message, as a communicator does: the validator's judge.

Written from the contract of `docs/design/engine.md` alone. Each rank has a queue of entries: a batch of sends and
receives, a point that its tensor group must reach, or an operation's computation. The first message sent from a to b
meets the first one received by b from a; messages have no names. A replica without a token of a short ring sends its
activations all the same here: one more message to wait for, so this judge is the stricter one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from coxswain.layout import Layout, Seat
from coxswain.plan.values import Operation, StageOperations, Task

Outcome = Literal["done", "hang", "mixed up"]
Label = tuple[Any, ...]


@dataclass(slots=True)
class Batch:
    """Messages that leave the queue together: by peer, what is sent, and what is expected."""

    sends: dict[int, Label] = field(default_factory=dict)
    receives: dict[int, Label] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Together:
    """All ranks of a tensor group must reach this point."""

    group: tuple[int, ...]
    label: Label


@dataclass(frozen=True, slots=True)
class Compute:
    operation: Operation


Entry = Batch | Together | Compute


class Machine:
    """Runs every rank's queue. `buffered`: a send ends at once, as gloo's seems to."""

    def __init__(
        self, layout: Layout, tasks: tuple[Task, ...], lists: tuple[StageOperations, ...], *, buffered: bool = False
    ) -> None:
        self.layout, self.tasks, self.buffered = layout, tasks, buffered
        self.ranks = {(x.replica, x.stage, x.tensor): x.rank for x in layout.ranks()}
        walked = {(x.replica, x.stage): x.operations for x in lists}
        self.queues = [list(self._queue(seat, walked[seat.replica, seat.stage])) for seat in layout.ranks()]
        self.mail: dict[tuple[int, int], list[Label]] = {}
        self.posted: set[int] = set()  # ranks whose present batch has put its buffered sends into the mail
        self.forward: list[set[int]] = [set() for _ in self.queues]

    def run(self) -> Outcome:
        """Lets ranks go on, one at a time, until none can."""
        moved = True
        while moved:
            moved = False
            for rank in range(len(self.queues)):
                outcome = self._step(rank)
                if outcome == "mixed up":
                    return outcome
                moved = moved or outcome == "moved"
        return "hang" if any(self.queues) else "done"

    def _step(self, rank: int) -> Literal["moved", "stays", "mixed up"]:
        if not self.queues[rank]:
            return "stays"
        entry = self.queues[rank][0]
        if isinstance(entry, Batch):
            return self._exchange(rank, entry)
        if isinstance(entry, Together):
            if any(not self.queues[r] or self.queues[r][0] != entry for r in entry.group):
                return "stays"
            for r in entry.group:
                self.queues[r].pop(0)
            return "moved"
        operation = entry.operation
        if operation.kind == "B" and operation.task not in self.forward[rank]:
            return "mixed up"
        self.forward[rank].add(operation.task)
        self.queues[rank].pop(0)
        return "moved"

    def _exchange(self, rank: int, batch: Batch) -> Literal["moved", "stays", "mixed up"]:
        left = len(batch.sends) + len(batch.receives)
        if self.buffered and rank not in self.posted:
            for peer, label in batch.sends.items():
                self.mail.setdefault((rank, peer), []).append(label)
            batch.sends.clear()
            self.posted.add(rank)
        for peer, expected in list(batch.receives.items()):
            found = self._arrived(peer, rank)
            if found is not None:
                if found != expected:
                    return "mixed up"
                del batch.receives[peer]
        if batch.sends or batch.receives:
            return "moved" if len(batch.sends) + len(batch.receives) < left else "stays"
        self.posted.discard(rank)
        self.queues[rank].pop(0)
        return "moved"

    def _arrived(self, sender: int, receiver: int) -> Label | None:
        if self.buffered:
            waiting = self.mail.get((sender, receiver))
            return waiting.pop(0) if waiting else None
        there = self.queues[sender][0] if self.queues[sender] else None
        return there.sends.pop(receiver, None) if isinstance(there, Batch) else None

    def _queue(self, seat: Seat, operations: tuple[Operation, ...]) -> Iterator[Entry]:
        for operation, following in pairwise((None, *operations, None)):
            if operation:
                yield from self._inside(seat, operation)
            batch = Batch()
            for each, messages, sending in ((operation, batch.sends, True), (following, batch.receives, False)):
                for peer in self._peers(seat, each, sending=sending) if each else ():
                    messages[peer] = (each,)
            if batch.sends or batch.receives:
                yield batch

    def _peers(self, seat: Seat, operation: Operation, *, sending: bool) -> Iterator[int]:
        """The ranks of the stage beside this one: receiver j takes from sender j mod the sender's degree."""
        down = operation.kind == "F"
        other = seat.stage + (1 if down == sending else -1)
        stages = self.layout.replicas[seat.replica].stages
        if not 0 <= other < len(stages):
            return
        mine, theirs = len(stages[seat.stage].devices), len(stages[other].devices)
        tensors = [j for j in range(theirs) if j % mine == seat.tensor] if sending else [seat.tensor % theirs]
        for tensor in tensors:
            yield self.ranks[seat.replica, other, tensor]

    def _inside(self, seat: Seat, operation: Operation) -> Iterator[Entry]:
        stage = self.layout.replicas[seat.replica].stages[seat.stage]
        group = tuple(self.ranks[seat.replica, seat.stage, t] for t in range(len(stage.devices)))
        members = self.tasks[operation.task].replicas
        yield Compute(operation)
        for layer in range(stage.start, stage.stop):
            if len(members) > 1:
                yield from self._attention(seat, operation, layer)
            if len(group) > 1:
                yield Together(group, (operation, layer))

    def _attention(self, seat: Seat, operation: Operation, layer: int) -> Iterator[Entry]:
        """The exchange of heads before attention, the hops of the ring that remains, and the exchange after it."""
        task = self.tasks[operation.task]
        members, size = task.replicas, task.ulysses or 1
        first, place = divmod(members.index(seat.replica), size)
        group, ring = members[first * size : (first + 1) * size], members[place::size]
        peers = [self.ranks[r, seat.stage, seat.tensor] for r in group if r != seat.replica]
        yield from self._exchanged(peers, (operation, layer, "before"))
        at, degree = ring.index(seat.replica), len(ring)
        after, before = (self.ranks[ring[(at + k) % degree], seat.stage, seat.tensor] for k in (1, -1))
        for hop in range(0 if degree == 1 else degree - 1 if operation.kind == "F" else degree + 1):
            yield Batch({after: (operation, layer, hop)}, {before: (operation, layer, hop)})
        yield from self._exchanged(peers, (operation, layer, "after"))

    def _exchanged(self, peers: list[int], label: Label) -> Iterator[Entry]:
        if peers:
            yield Batch(dict.fromkeys(peers, label), dict.fromkeys(peers, label))


def walk(
    layout: Layout, tasks: tuple[Task, ...], lists: tuple[StageOperations, ...], *, buffered: bool = False
) -> Outcome:
    return Machine(layout, tasks, lists, buffered=buffered).run()
