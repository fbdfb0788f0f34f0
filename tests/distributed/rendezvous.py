"""Threads whose messages meet as those of one NCCL communicator: a rank's batches run in order, and each meets its partners.

Between other threads sends are buffered, so that a plan which would hang on NCCL passes there, as it does on gloo.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from coxswain_train.model.ring import Message
from tests.distributed.threads import ThreadWorld


class Hang(AssertionError):
    """Every rank waits for a batch that cannot end, or a message has met one of another size."""


@dataclass(eq=False)
class Batch:
    """Messages that have not met yet, by peer: in one direction at most one a peer."""

    sends: dict[int, Tensor]
    receives: dict[int, Tensor]


@dataclass
class Communicator:
    """The queues of all ranks, of which only the heads meet."""

    ranks: int
    queues: list[deque[Batch]] = field(init=False)
    waiting: dict[int, Batch] = field(default_factory=dict)
    ended: int = 0
    hung: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.queues = [deque() for _ in range(self.ranks)]

    def put(self, rank: int, batch: Batch) -> None:
        with self.changed:
            self.queues[rank].append(batch)
            while any(self._meet(each) for each in range(self.ranks)):
                pass
            self.changed.notify_all()

    def wait(self, rank: int, batch: Batch) -> None:
        with self.changed:
            if batch in self.queues[rank]:
                self.waiting[rank] = batch
                self.look()
            while batch in self.queues[rank] and not self.hung:
                assert self.changed.wait(60), "another rank has failed"
            if self.hung:
                raise Hang(f"rank {rank} waits to send to {[*batch.sends]} and to receive from {[*batch.receives]}")

    def leave(self) -> None:
        """Says that a rank sends and receives nothing more."""
        with self.changed:
            self.ended += 1
            self.look()

    def look(self) -> None:
        """Ends all waits where every rank waits or has left. Call it with `changed`."""
        if self.waiting and len(self.waiting) + self.ended == self.ranks:
            self.hung = True
            self.changed.notify_all()

    def _meet(self, rank: int) -> bool:
        """Lets the head of one queue meet the others' heads; whether it left the queue."""
        if not self.queues[rank]:
            return False
        mine = self.queues[rank][0]
        for peer in [p for p in mine.sends if self.queues[p] and rank in self.queues[p][0].receives]:
            self._copy(mine.sends.pop(peer), self.queues[peer][0].receives.pop(rank))
        for peer in [p for p in mine.receives if self.queues[p] and rank in self.queues[p][0].sends]:
            self._copy(self.queues[peer][0].sends.pop(rank), mine.receives.pop(peer))
        if mine.sends or mine.receives:
            return False
        self.queues[rank].popleft()
        if self.waiting.get(rank) is mine:
            del self.waiting[rank]
        return True

    def _copy(self, sent: Tensor, received: Tensor) -> None:
        """Messages have no names: one that meets that of another ring has another size at best."""
        if sent.shape == received.shape:
            received.copy_(sent)
        else:
            self.hung = True


@dataclass
class RendezvousWorld(ThreadWorld):
    """As `ThreadWorld`, but for its point-to-point messages."""

    communicator: Communicator = field(default_factory=lambda: Communicator(0))

    def exchange(self, ranks: tuple[int, ...]) -> Meeting:  # type: ignore[override]
        return Meeting(self, ranks)


@dataclass(frozen=True)
class Meeting:
    """A rank's end of a ring, or of all ranks; peers are places in it."""

    world: RendezvousWorld
    ranks: tuple[int, ...]

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Met:
        out, into = (
            {self.ranks[place]: tensor.detach() for place, tensor in each if tensor.numel()}
            for each in (sends, receives)
        )
        batch = Batch(out, into)
        if out or into:
            self.world.communicator.put(self.world.rank, batch)
        return Met(self.world, batch)


@dataclass(frozen=True)
class Met:
    world: RendezvousWorld
    batch: Batch

    def wait(self) -> None:
        with self.world.clock.waiting():
            self.world.communicator.wait(self.world.rank, self.batch)

    def arrived(self) -> None:
        self.wait()
