"""The communicators of one generation: two over all ranks (P2P and reductions), made once, and no group after that.

Rings are batches of P2P on the first; sub-rings need no groups of their own once it is warm.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore

from coxswain_train.model.ring import Message
from coxswain_train.parallel.grid import Grid

# A collective that waits longer than this has lost a peer. The coordinator judges shorter stalls.
_PATIENCE = timedelta(minutes=30)


def listen(host: str, ranks: int) -> TCPStore:
    """Rank 0's store on a port from the kernel (`.port`)."""
    return TCPStore(host, 0, ranks, is_master=True, wait_for_workers=False, timeout=_PATIENCE)


def join(host: str, port: int, ranks: int) -> TCPStore:
    return TCPStore(host, port, ranks, is_master=False, timeout=_PATIENCE)


class ProcessGroups:
    """All ranks of a generation, joined. Is the engine's `Reduction`, and gives rings their `Exchange`."""

    def __init__(self, store: Store, rank: int, ranks: int, device: torch.device) -> None:
        self.rank, self.ranks, self._device = rank, ranks, device
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=_PATIENCE)
        self._p2p, self._sums = _member(dist.group.WORLD), _member(dist.new_group(timeout=_PATIENCE))
        self.waited = 0.0  # seconds spent waiting for ring peers so far
        self.grid = Grid(ranks)
        self._hops = _grid_groups(self.grid, rank) if self.grid.hops == 2 else ()
        # The first use of a group must not be a batch that only some ranks run.
        for group in (self._p2p, self._sums, *self._hops):
            dist.all_reduce(torch.zeros(1, device=device), group=group)

    def exchange(self, ranks: tuple[int, ...]) -> RingExchange:
        """The ring whose members are these ranks, in ring order."""
        return RingExchange(self, ranks)

    def transfer(self, sends: Sequence[Message], receives: Sequence[Message]) -> list[dist.Work]:
        """One batch to and from ranks. Empty tensors are left out: both sides know their sizes."""
        operations = [
            dist.P2POp(verb, tensor, rank, self._p2p)
            for verb, messages in ((dist.isend, sends), (dist.irecv, receives))
            for rank, tensor in messages
            if tensor.numel()
        ]
        return list(dist.batch_isend_irecv(operations)) if operations else []

    def all_to_all(self, received: Tensor, sent: Tensor, receives: list[int], sends: list[int], hop: int) -> dist.Work:
        group = self._hops[hop] if self._hops else self._sums
        return dist.all_to_all_single(received, sent, receives, sends, group=group, async_op=True)  # type: ignore[return-value]

    def scalars(self, mine: list[float]) -> list[list[float]]:
        sent = torch.tensor(mine, dtype=torch.float64, device=self._device)
        gathered = sent.new_empty(self.ranks * len(mine))
        dist.all_gather_into_tensor(gathered, sent, group=self._sums)
        rows: list[list[float]] = gathered.view(self.ranks, len(mine)).tolist()
        return rows


@dataclass(frozen=True, slots=True)
class RingExchange:
    """Passes tensors between members of a ring; a member's place is its index in `ranks`."""

    world: ProcessGroups
    ranks: tuple[int, ...]

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> RingTransfer:
        out, into = ([(self.ranks[place], tensor) for place, tensor in each] for each in (sends, receives))
        # What is sent must exist until it has gone.
        return RingTransfer(self.world, self.world.transfer(out, into), tuple(out))


@dataclass(frozen=True, slots=True)
class RingTransfer:
    world: ProcessGroups
    works: list[dist.Work]
    sent: tuple[Message, ...]  # keeps the tensors

    def wait(self) -> None:
        began = time.perf_counter()
        for work in self.works:
            work.wait()
        self.world.waited += time.perf_counter() - began


def _member(group: dist.ProcessGroup | int | None) -> dist.ProcessGroup:
    """Narrows the type: every rank is in every group here, torch allows for ranks that are not."""
    assert isinstance(group, dist.ProcessGroup)
    return group


def _grid_groups(grid: Grid, rank: int) -> tuple[dist.ProcessGroup, ...]:
    """The row and the column of a rank. Only their members join in making them."""
    members = list(grid.row(grid.row_of(rank))), grid.column(grid.column_of(rank))
    made = (dist.new_group(ranks, timeout=_PATIENCE, use_local_synchronization=True) for ranks in members)
    return tuple(_member(group) for group in made)


def leave_world() -> None:
    """Leaves a world in which nothing is under way, or that `WorldAborter` has aborted. Else this may not return."""
    if dist.is_initialized():
        dist.destroy_process_group()


class WorldAborter:
    """Ends, from another thread, all waits in a world whose peers do not answer any more: `abort_world()`.

    gloo reports a dead peer only to a rank that waits for it directly, and neither aborting nor destroying a group
    ends another wait. Shutting down the group's sockets does: every wait on them raises at once, and the process can
    join another world.
    """

    def __init__(self) -> None:
        self._foreign = frozenset(_sockets())

    def begin(self) -> None:
        """Counts sockets opened from now on to the world that is joined next (or to calls that are repeated)."""
        self._foreign = frozenset(_sockets())

    def abort_world(self) -> None:
        """Makes every wait for this world's peers raise RuntimeError."""
        if torch.cuda.is_available() and dist.is_initialized():
            dist.distributed_c10d._abort_process_group()
        for name, descriptor in _sockets().items():
            if name not in self._foreign:
                _shut_down(descriptor)


def _sockets() -> dict[str, int]:
    """This process's sockets: the kernel's name of each (descriptors are used again) and its descriptor."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208  half the time of pathlib, while peers wait
        with suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{entry}")  # noqa: PTH115
            if name.startswith("socket:"):
                found[name] = int(entry)
    return found


def _shut_down(descriptor: int) -> None:
    """Cuts TCP connections only: a listener may still be used; local sockets are the agent's and the constructor's."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as mine:
        if mine.family == socket.AF_UNIX or mine.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return
        mine.shutdown(socket.SHUT_RDWR)
