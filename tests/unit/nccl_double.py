"""A `torch.distributed` that behaves as NCCL does where gloo does not. Ranks are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from coxswain_train.parallel import process_groups
from coxswain_train.parallel.process_groups import ProcessGroups
from tests.distributed.rendezvous import Batch, Communicator, Hang

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Group:
    """The `number`-th that its members have made."""

    number: int
    ranks: tuple[int, ...]

    def size(self) -> int:
        return len(self.ranks)


class Done:
    """Work that the host need not wait for."""

    def wait(self) -> None: ...


@dataclass
class Nccl:
    """Two ranks of a group connect at their first message to each other, on the thread that enqueues it; sums connect nothing.
    A wait for what is enqueued is the device's, but for `synchronize`."""

    ranks: int
    alone: bool = False  # the other ranks are not here
    exchanges: list[tuple[Group, list[int], list[int]]] = field(default_factory=list)  # that were enqueued: sizes
    sums: list[Group] = field(default_factory=list)
    operations: list[Any] = field(default_factory=list)  # of sums
    sent: list[list[tuple[str, int, Tensor, Group]]] = field(default_factory=list)  # messages, by batch
    backends: list[str] = field(default_factory=list)
    patience: list[timedelta | None] = field(default_factory=list)  # of worlds and groups, as they are made
    local: list[Group] = field(default_factory=list)  # groups that their members alone make
    ReduceOp = SimpleNamespace(SUM="sum", MAX="maximum")
    ProcessGroup = Group
    group = SimpleNamespace()

    def __post_init__(self) -> None:
        self._here, self._met = threading.local(), dict[Group, set[int]]()
        self.batches = Communicator(self.ranks)
        self.group = SimpleNamespace(WORLD=Group(0, tuple(range(self.ranks))))

    def init_process_group(self, backend: str, rank: int, timeout: timedelta | None = None, **_: Any) -> None:
        self._here.rank, self._here.groups, self._here.last = rank, 0, None
        self.backends.append(backend)
        self.patience.append(timeout)

    def new_group(
        self, ranks: Sequence[int] | None = None, timeout: timedelta | None = None, use_local_synchronization: bool = False
    ) -> Group:  # fmt: skip
        self._here.groups += 1
        self.patience.append(timeout)
        made = Group(self._here.groups, tuple(range(self.ranks) if ranks is None else ranks))
        self.local += [made] * use_local_synchronization
        return made

    def all_reduce(self, tensor: Tensor, op: str = "sum", group: Group | None = None) -> None:
        assert group and tensor.numel(), "a sum of nothing waits for no rank"
        self.sums.append(group)
        self.operations.append(op)

    def all_gather_into_tensor(self, gathered: Tensor, sent: Tensor, group: Group) -> None:
        self.sums.append(group)
        gathered.copy_(sent.repeat(group.size()))

    def all_to_all_single(
        self,
        received: Tensor,
        sent: Tensor,
        receives: list[int],
        sends: list[int],
        group: Group,
        async_op: bool = False,
    ) -> Done | None:
        assert (received.numel(), sent.numel()) == (sum(receives), sum(sends))
        self.exchanges.append((group, receives, sends))
        self._connect(group)
        return Done() if async_op else None

    def _connect(self, group: Group) -> None:
        met, rank = self._met.setdefault(group, set()), self._here.rank
        with self.batches.changed:
            met.add(rank)
            if len(met) == group.size():
                for other in met:
                    self.batches.waiting.pop(other, None)
                self.batches.changed.notify_all()
            elif not self.alone:
                self.batches.waiting[rank] = Batch({}, {})
                self.batches.look()
            while self.batches.waiting.get(rank) and not self.batches.hung:
                assert self.batches.changed.wait(60)
            if self.batches.hung:
                raise Hang(f"rank {rank} waits for the others' first message")

    isend, irecv = "isend", "irecv"

    def P2POp(self, verb: str, tensor: Tensor, rank: int, group: Group) -> tuple[str, int, Tensor, Group]:
        return verb, rank, tensor, group

    def batch_isend_irecv(self, operations: list[tuple[str, int, Tensor, Group]]) -> list[Done]:
        self.sent.append(operations)
        out, into = ({peer: x for v, peer, x, _ in operations if v == verb} for verb in ("isend", "irecv"))
        self._here.last = Batch(out, into)
        self.batches.put(self._here.rank, self._here.last)
        return [Done()]

    def synchronize(self) -> None:
        """The host waits for all that this rank has enqueued."""
        self.batches.wait(self._here.rank, self._here.last)


def joined(
    monkeypatch: pytest.MonkeyPatch, ranks: int, alone: bool, device: torch.device = CPU
) -> tuple[Nccl, Callable[..., ProcessGroups]]:
    nccl = Nccl(ranks, alone)
    monkeypatch.setattr(process_groups, "dist", nccl)
    return nccl, lambda rank, **more: ProcessGroups(None, rank, ranks, device, **more)  # type: ignore[arg-type]
