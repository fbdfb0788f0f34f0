"""`run_threads(n, fn)`: as `run_ranks`, but ranks are threads of this process and queues carry their tensors."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coxswain_train.model.ring import Message


class Mail:
    """Queues between all ranks."""

    def __init__(self, ranks: int) -> None:
        pairs = itertools.product(range(ranks), repeat=2)
        self._ranks, self._boxes = ranks, {pair: queue.Queue[Tensor | None]() for pair in pairs}

    def send(self, sender: int, receiver: int, tensor: Tensor) -> None:
        self._boxes[sender, receiver].put(tensor.detach().clone())

    def receive(self, sender: int, receiver: int) -> Tensor:
        found = self._boxes[sender, receiver].get(timeout=60)
        assert found is not None, "another rank has failed"
        return found

    def end(self) -> None:
        """Ends every wait."""
        for box in self._boxes.values():
            box.put(None)


@dataclass
class ThreadWorld:
    """One rank's world: the engine's `Reduction`, and the `Exchange` of its rings."""

    mail: Mail
    rank: int
    ranks: int
    waited: float = 0.0

    def exchange(self, ranks: tuple[int, ...]) -> Member:
        return Member(self.mail, ranks, self.rank)

    def tensor_group(self, ranks: tuple[int, ...]) -> ThreadGroup | None:
        return ThreadGroup(self, ranks) if len(ranks) > 1 else None

    def to_owners(self, packed: Tensor, sizes: list[int], me: int) -> list[Tensor]:
        return self._swap(torch.split(packed, sizes))

    def to_all(self, mine: Tensor, sizes: list[int]) -> list[Tensor]:
        return self._swap([mine] * self.ranks)

    def scalars(self, mine: list[float]) -> list[list[float]]:
        return [row.tolist() for row in self._swap([torch.tensor(mine, dtype=torch.float64)] * self.ranks)]

    def _swap(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Sends every rank its part; returns what every rank sent here."""
        return self.swap(range(self.ranks), parts)

    def swap(self, ranks: Sequence[int], parts: Sequence[Tensor]) -> list[Tensor]:
        for rank, part in zip(ranks, parts, strict=True):
            self.mail.send(self.rank, rank, part)
        return [self.mail.receive(rank, self.rank) for rank in ranks]


@dataclass(frozen=True)
class ThreadGroup:
    """As `TensorGroup`. Its messages share the queues of all others: a group's ranks run the same operations."""

    world: ThreadWorld
    ranks: tuple[int, ...]

    @property
    def index(self) -> int:
        return self.ranks.index(self.world.rank)

    @property
    def degree(self) -> int:
        return len(self.ranks)

    def sum(self, x: Tensor) -> None:
        x.copy_(torch.stack(self.world.swap(self.ranks, [x] * self.degree)).sum(0))

    def maximum(self, x: Tensor) -> None:
        x.copy_(torch.stack(self.world.swap(self.ranks, [x] * self.degree)).amax(0))


@dataclass(frozen=True)
class Member:
    """A rank's end of a ring; peers are places in the ring."""

    mail: Mail
    ranks: tuple[int, ...]
    rank: int

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
        for place, tensor in self.receives:
            if tensor.numel():
                tensor.copy_(self.member.mail.receive(self.member.ranks[place], self.member.rank))
        self.receives = ()


def run_threads(n: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    """Results of `fn(world, *args)` by rank. Raises the first error of a rank."""
    mail = Mail(n)
    with ThreadPoolExecutor(n) as threads:
        futures = [threads.submit(fn, ThreadWorld(mail, rank, n), *args) for rank in range(n)]
        for failed in (f for f in wait(futures, return_when=FIRST_EXCEPTION).done if f.exception()):
            mail.end()
            failed.result()
        return [future.result() for future in futures]
