"""The communicators of a world, on a `torch.distributed` that behaves as NCCL does where gloo does not. Ranks are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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
    ProcessGroup = Group
    group = SimpleNamespace()

    def __post_init__(self) -> None:
        self._here, self._met = threading.local(), dict[Group, set[int]]()
        self.batches = Communicator(self.ranks)
        self.group = SimpleNamespace(WORLD=Group(0, tuple(range(self.ranks))))

    def init_process_group(self, backend: str, rank: int, **_: Any) -> None:
        self._here.rank, self._here.groups, self._here.last = rank, 0, None

    def new_group(self, ranks: Sequence[int] | None = None, **_: Any) -> Group:
        self._here.groups += 1
        return Group(self._here.groups, tuple(range(self.ranks) if ranks is None else ranks))

    def all_reduce(self, tensor: Tensor, group: Group) -> None:
        self.sums.append(group)

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
    ) -> Done:
        assert (received.numel(), sent.numel()) == (sum(receives), sum(sends))
        self.exchanges.append((group, receives, sends))
        self._connect(group)
        return Done()

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
                self.batches._look()
            while self.batches.waiting.get(rank) and not self.batches.hung:
                assert self.batches.changed.wait(60)
            if self.batches.hung:
                raise Hang(f"rank {rank} waits for the others' first message")

    isend, irecv = "isend", "irecv"

    def P2POp(self, verb: str, tensor: Tensor, rank: int, group: Group) -> tuple[str, int, Tensor]:
        return verb, rank, tensor

    def batch_isend_irecv(self, operations: list[tuple[str, int, Tensor]]) -> list[Done]:
        out, into = ({peer: x for v, peer, x in operations if v == verb} for verb in ("isend", "irecv"))
        self._here.last = Batch(out, into)
        self.batches.put(self._here.rank, self._here.last)
        return [Done()]

    def synchronize(self) -> None:
        """The host waits for all that this rank has enqueued."""
        self.batches.wait(self._here.rank, self._here.last)


def joined(monkeypatch: pytest.MonkeyPatch, ranks: int, alone: bool) -> tuple[Nccl, Callable[..., ProcessGroups]]:
    nccl = Nccl(ranks, alone)
    monkeypatch.setattr(process_groups, "dist", nccl)
    return nccl, lambda rank, **more: ProcessGroups(None, rank, ranks, CPU, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ranks", "groups"), [(1, 1), (3, 1), (64, 1), (100, 2)])
def test_a_rank_has_sent_each_peer_of_a_later_exchange_something_before_its_world_begins(
    monkeypatch: pytest.MonkeyPatch, ranks: int, groups: int
) -> None:
    nccl, join = joined(monkeypatch, ranks, alone=True)
    world = join(ranks - 1)
    first, nccl.exchanges = nccl.exchanges, []
    for hop in range(groups):
        world.all_to_all(torch.zeros(0), torch.zeros(0), [], [], hop)
    assert [group for group, _, _ in first] == [group for group, _, _ in nccl.exchanges]
    assert all(min(sizes) > 0 and len(sizes) == group.size() for group, *both in first for sizes in both)
    assert {group.size() for group, _, _ in first} == ({10} if ranks == 100 else {ranks})


def test_a_bucket_that_leaves_within_a_backward_waits_for_no_peer_that_waits_for_the_rest_of_this_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0's last backward is that of a ring. Rank 1 has its part of the ring enqueued, and its host waits for the device."""
    nccl, join = joined(monkeypatch, 2, alone=False)

    def hop(world: ProcessGroups) -> None:
        peer = 1 - world.rank
        world.transfer([(peer, torch.ones(1))], [(peer, torch.zeros(1))])

    def bucket(world: ProcessGroups) -> None:
        world.all_to_all(torch.zeros(2), torch.zeros(2), [1, 1], [1, 1], 0)

    def run(rank: int) -> None:
        world = join(rank)
        for each in ([hop, bucket, hop], [hop, hop, lambda _: nccl.synchronize(), bucket])[rank]:
            each(world)
        nccl.batches.leave()

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(run, range(2))) == [None, None]


def test_an_aborted_rank_sends_nothing_to_the_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would send is made of what the abort has cut short, and peers that are not aborted yet would agree on it."""
    aborted: list[bool] = []
    nccl, join = joined(monkeypatch, 2, alone=True)
    world = join(0, is_aborted=lambda: bool(aborted))
    assert world.scalars([3.0]) == [[3.0], [3.0]]
    aborted.append(True)
    nccl.sums.clear()
    with pytest.raises(RuntimeError, match="the world was aborted"):
        world.scalars([3.0])
    assert nccl.sums == []
