"""`run_threads(n, fn)`: as `run_ranks`, but ranks are threads of this process and queues carry their tensors."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coxswain_train.model.ring import Message
from coxswain_train.parallel.clock import DeviceClock
from coxswain_train.parallel.grid import FLAT_RANKS, Grid

Box = queue.Queue[Tensor | None]


class Mail:
    """Queues between all ranks. A lane is what a communicator is between processes."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[int, int, int], Box] = {}
        self._ended, self._lock = False, threading.Lock()

    def _box(self, sender: int, receiver: int, lane: int) -> Box:
        with self._lock:
            box = self._boxes.setdefault((sender, receiver, lane), queue.Queue())
            if self._ended:
                box.put(None)
            return box

    def send(self, sender: int, receiver: int, tensor: Tensor, lane: int = -1) -> None:
        self._box(sender, receiver, lane).put(tensor.detach().clone())

    def receive(self, sender: int, receiver: int, lane: int = -1) -> Tensor:
        found = self._box(sender, receiver, lane).get(timeout=60)
        if found is None:
            raise RuntimeError(f"rank {sender} has failed")
        return found

    def end(self) -> None:
        """Ends every wait."""
        with self._lock:
            self._ended = True
            for box in self._boxes.values():
                box.put(None)


@dataclass
class ThreadWorld:
    """One rank's world: the engine's `Reduction`, and the `Exchange` of its rings."""

    mail: Mail
    rank: int
    ranks: int
    clock: DeviceClock = field(default_factory=DeviceClock)
    flat_ranks: int = FLAT_RANKS
    aborted: bool = False

    def exchange(self, ranks: tuple[int, ...]) -> Member:
        return Member(self.mail, ranks, self.rank, self.clock)

    @property
    def grid(self) -> Grid:
        return Grid(self.ranks, self.flat_ranks)

    def tensor_group(self, ranks: tuple[int, ...]) -> ThreadGroup | None:
        return ThreadGroup(self, ranks) if len(ranks) > 1 else None

    def all_to_all(self, received: Tensor, sent: Tensor, receives: list[int], sends: list[int], hop: int) -> Delivery:
        """Each hop has queues of its own, as it has a group of its own between processes."""
        peers = self.hop_peers(hop)
        assert len(peers) == len(receives) == len(sends)
        for peer, part in zip(peers, torch.split(sent, sends), strict=True):
            self.mail.send(self.rank, peer, part, hop)
        return Delivery(self, peers, torch.split(received, receives), hop)

    def hop_peers(self, hop: int) -> list[int]:
        grid = self.grid
        return grid.column(grid.column_of(self.rank)) if hop else list(grid.row(grid.row_of(self.rank)))

    def scalars(self, mine: list[float]) -> list[list[float]]:
        return [row.tolist() for row in self._swap([torch.tensor(mine, dtype=torch.float64)] * self.ranks)]

    def check(self) -> None:
        if self.aborted:
            raise RuntimeError("the world was aborted")

    def barrier(self) -> None:
        with self.clock.waiting():
            self.swap(range(self.ranks), [torch.zeros(1)] * self.ranks, -4)

    def _swap(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Sends every rank its part; returns what every rank sent here."""
        return self.swap(range(self.ranks), parts, -2)

    def swap(self, ranks: Sequence[int], parts: Sequence[Tensor], lane: int) -> list[Tensor]:
        for rank, part in zip(ranks, parts, strict=True):
            self.mail.send(self.rank, rank, part, lane)
        return [self.mail.receive(rank, self.rank, lane) for rank in ranks]


@dataclass(frozen=True)
class ThreadGroup:
    """As `TensorGroup`."""

    world: ThreadWorld
    ranks: tuple[int, ...]

    @property
    def index(self) -> int:
        return self.ranks.index(self.world.rank)

    @property
    def degree(self) -> int:
        return len(self.ranks)

    def sum(self, x: Tensor) -> None:
        x.copy_(torch.stack(self.world.swap(self.ranks, [x] * self.degree, -3)).sum(0))

    def maximum(self, x: Tensor) -> None:
        x.copy_(torch.stack(self.world.swap(self.ranks, [x] * self.degree, -3)).amax(0))


@dataclass(frozen=True)
class Delivery:
    """An exchange under way."""

    world: ThreadWorld
    peers: Sequence[int]
    parts: Sequence[Tensor]
    hop: int

    def is_completed(self) -> bool:
        return False

    def wait(self) -> None:
        for peer, part in zip(self.peers, self.parts, strict=True):
            part.copy_(self.world.mail.receive(peer, self.world.rank, self.hop))


@dataclass(frozen=True)
class Member:
    """A rank's end of a ring; peers are places in the ring."""

    mail: Mail
    ranks: tuple[int, ...]
    rank: int
    clock: DeviceClock

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Arrivals:
        for place, tensor in sends:
            if tensor.numel():
                self.mail.send(self.rank, self.ranks[place], tensor)
        return Arrivals(self, receives)


@dataclass
class Arrivals:
    member: Member
    receives: Sequence[Message]

    def wait(self) -> None:
        self.arrived()

    def arrived(self) -> None:
        with self.member.clock.waiting():
            for place, tensor in self.receives:
                if tensor.numel():
                    tensor.copy_(self.member.mail.receive(self.member.ranks[place], self.member.rank))
        self.receives = ()


def run_threads(n: int, fn: Callable[..., Any], *args: Any, flat_ranks: int = FLAT_RANKS) -> list[Any]:
    """Results of `fn(world, *args)` by rank. Raises the first error of a rank."""
    mail = Mail()
    with ThreadPoolExecutor(n) as threads:
        futures = [threads.submit(fn, ThreadWorld(mail, rank, n, flat_ranks=flat_ranks), *args) for rank in range(n)]
        for failed in (f for f in wait(futures, return_when=FIRST_EXCEPTION).done if f.exception()):
            mail.end()
            failed.result()
        return [future.result() for future in futures]
