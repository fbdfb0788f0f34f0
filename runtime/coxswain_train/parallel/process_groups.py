"""The communicators of one generation: two over all ranks (P2P and reductions), and one a tensor group.

All are made and warmed at the start; no group is made after that. Rings and links between stages are batches of P2P on
the first; sub-rings need no groups of their own.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore, Store, TCPStore

from coxswain_train.model.ring import Message
from coxswain_train.parallel.clock import DeviceClock
from coxswain_train.parallel.grid import Grid

log = logging.getLogger(__name__)

# `WorldAborter` alone ends a world: torch's watchdog must neither abort communicators by itself nor end the process, which
# is to join the next world; waits stay on the device. (torch asks for 0 where communicators are aborted from outside.) A CUDA
# error still ends the process.
NCCL_ERRORS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_BLOCKING_WAIT": "0", "TORCH_NCCL_ENABLE_MONITORING": "0",
}  # fmt: skip

# A collective that waits longer than this has lost a peer. The coordinator judges shorter stalls.
_PATIENCE = timedelta(minutes=30)


def listen(host: str, ranks: int) -> TCPStore:
    """Rank 0's store on a port from the kernel (`.port`)."""
    return TCPStore(host, 0, ranks, is_master=True, wait_for_workers=False, timeout=_PATIENCE)


def join(host: str, port: int, ranks: int) -> TCPStore:
    return TCPStore(host, port, ranks, is_master=False, timeout=_PATIENCE)


class ProcessGroups:
    """All ranks of a generation, joined. Is the engine's `Reduction`, and gives rings their `Exchange`."""

    def __init__(
        self, store: Store, rank: int, ranks: int, device: torch.device, is_aborted: Callable[[], bool] = lambda: False
    ) -> None:
        self.rank, self.ranks, self._device, self._is_aborted = rank, ranks, device, is_aborted
        os.environ.update(NCCL_ERRORS)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=_PATIENCE)
        self._p2p, self._sums = _member(dist.group.WORLD), _member(dist.new_group(timeout=_PATIENCE))
        self.clock = DeviceClock.of(device)
        self._tensor_groups: dict[tuple[int, ...], SharedSums] = {}
        self.grid = Grid(ranks)
        self.hops = hop_groups(self.grid, rank) if self.grid.hops == 2 else ()
        # The first use of a group must not be a batch that only some ranks run.
        for group in (self._p2p, self._sums, *self.hops):
            dist.all_reduce(torch.zeros(1, device=device), group=group)
        for group in self._exchanging:
            self._connect(group)

    @property
    def _exchanging(self) -> tuple[dist.ProcessGroup, ...]:
        """The groups of `all_to_all`, by hop: at most 64 ranks, or about twice the square root of their number."""
        return self.hops or (self._sums,)

    def _connect(self, group: dist.ProcessGroup) -> None:
        """Sends every member something. NCCL connects two ranks at their first message, on the thread that enqueues it, and a sum
        does not: a bucket that leaves within a backward would wait there for peers that wait for the rest of this backward."""
        each = [1] * group.size()
        sent = torch.zeros(len(each), device=self._device)
        dist.all_to_all_single(torch.empty_like(sent), sent, each, each, group=group)  # with sizes: as buckets travel

    def tensor_group(self, ranks: tuple[int, ...]) -> SharedSums | None:
        """The communicator of a tensor group, of which this rank is one; None when it is alone. Call it at the start."""
        if len(ranks) == 1:
            return None
        if ranks not in self._tensor_groups:
            made = _member(dist.new_group(list(ranks), timeout=_PATIENCE, use_local_synchronization=True))
            dist.all_reduce(torch.zeros(1, device=self._device), group=made)
            self._tensor_groups[ranks] = SharedSums(made, ranks.index(self.rank), len(ranks), self.clock)
        return self._tensor_groups[ranks]

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
        group = self._exchanging[hop]
        return dist.all_to_all_single(received, sent, receives, sends, group=group, async_op=True)  # type: ignore[return-value]

    def scalars(self, mine: list[float]) -> list[list[float]]:
        self.check()  # `mine` was read from the device, so it may be made of what an abort has cut short
        sent = torch.tensor(mine, dtype=torch.float64, device=self._device)
        gathered = sent.new_empty(self.ranks * len(mine))
        dist.all_gather_into_tensor(gathered, sent, group=self._sums)
        rows: list[list[float]] = gathered.view(self.ranks, len(mine)).tolist()
        self.check()
        return rows

    def barrier(self) -> None:
        """Ends once every rank has begun it: on the device, where that is not the host."""
        with self.clock.waiting():
            dist.all_reduce(torch.zeros(1, device=self._device), group=self._sums)
        self.check()

    def check(self) -> None:
        """Raises RuntimeError once the world is aborted.

        gloo's waits raise by themselves. NCCL's kernels just end, and leave garbage: the step's vote reads the device, so
        whatever was cut short before it is discarded here, while no state has changed. What an abort spoils after the vote
        are weights: the engine asks before it keeps them, and the next world gathers them again from their owners.
        """
        if self._is_aborted():
            raise RuntimeError("the world was aborted: what its collectives returned is discarded")


@dataclass(frozen=True, slots=True)
class RingExchange:
    """Passes tensors between members of a ring; a member's place is its index in `ranks`."""

    world: ProcessGroups
    ranks: tuple[int, ...]

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> RingTransfer:
        out, into = ([(self.ranks[place], tensor) for place, tensor in each] for each in (sends, receives))
        # What is sent must exist until it has gone.
        works = self.world.transfer(out, into)
        arriving = sum(bool(tensor.numel()) for _, tensor in into)
        return RingTransfer(self.world, works, arriving, tuple(out))


@dataclass(slots=True)
class RingTransfer:
    world: ProcessGroups
    works: list[dist.Work]  # of sends, then of receives (gloo), or one of the whole batch (NCCL)
    receives: int
    sent: tuple[Message, ...]  # keeps the tensors

    def wait(self) -> None:
        self._wait(0)

    def arrived(self) -> None:
        if self.receives:
            self._wait(max(0, len(self.works) - self.receives))
            self.receives = 0

    def _wait(self, first: int) -> None:
        """Waits for each work only once: gloo would wait for another message."""
        with self.world.clock.waiting():
            while len(self.works) > first:
                self.works.pop().wait()
        self.world.check()


@dataclass(frozen=True, slots=True)
class SharedSums:
    """A tensor group in a world: as `TensorGroup`."""

    group: dist.ProcessGroup
    index: int
    degree: int
    clock: DeviceClock

    def sum(self, x: Tensor) -> None:
        with self.clock.waiting():
            dist.all_reduce(x, group=self.group)

    def maximum(self, x: Tensor) -> None:
        with self.clock.waiting():
            dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)


def _member(group: dist.ProcessGroup | int | None) -> dist.ProcessGroup:
    """Narrows the type: every rank is in every group here, torch allows for ranks that are not."""
    assert isinstance(group, dist.ProcessGroup)
    return group


def hop_groups(grid: Grid, rank: int) -> tuple[dist.ProcessGroup, ...]:
    """The row and the column of a rank. Only their members join in making them."""
    members = list(grid.row(grid.row_of(rank))), grid.column(grid.column_of(rank))
    made = (dist.new_group(ranks, timeout=_PATIENCE, use_local_synchronization=True) for ranks in members)
    return tuple(_member(group) for group in made)


def settle(world: ProcessGroups, device: torch.device) -> None:
    """Ends once all that was received is there, in a world that stands. Else it raises RuntimeError: on a GPU an abort ends an
    exchange as if it were done. Nothing that peers have sent counts as held before this."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    world.check()


def leave_world() -> None:
    """Leaves a world in which nothing is under way, or that `WorldAborter` has aborted. Else this may not return."""
    if not dist.is_initialized():
        # torch names groups by how many it has begun to make, and only to destroy a world sets that to 0. A rank that broke off
        # while it joined would wait in the next world under another name than its peers.
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()


def open_sockets() -> dict[str, int]:
    """This process's sockets: the kernel's name of each (descriptors are used again) and its descriptor."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208  half the time of pathlib, while peers wait
        with suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{entry}")  # noqa: PTH115
            if name.startswith("socket:"):
                found[name] = int(entry)
    return found


class WorldAborter:
    """Ends, from another thread, all waits in a world whose peers do not answer any more: `abort_world()`.

    gloo reports a dead peer only to a rank that waits for it directly, and neither aborting nor destroying a group
    ends another wait. Shutting down the group's sockets does: every wait on them raises at once, and the process can
    join another world.
    """

    def __init__(self, sockets: Callable[[], Mapping[str, int]] = open_sockets) -> None:
        self._sockets = sockets
        self.begin()

    def begin(self) -> None:
        """Counts sockets opened from now on to the world that is joined next (or to calls that are repeated)."""
        self._foreign, self._aborted, self._over = frozenset(self._sockets()), False, False

    def is_aborted(self) -> bool:
        """Whether collectives were cut short since `begin`."""
        return self._aborted

    def is_over(self) -> bool:
        """Whether `abort_world` was called since `begin`: then errors are no fault of this worker."""
        return self._over

    def abort_world(self) -> None:
        """Makes every wait for this world's peers raise RuntimeError, or return garbage that `ProcessGroups.check` refuses."""
        self._over = True
        self._abort()

    @contextmanager
    def aborting_at_errors(self) -> Iterator[None]:
        """Aborts before an error leaves the block. Else what cleans up behind it waits for collectives that are under way, and
        they for this rank; and peers see the error as late."""
        try:
            yield
        except BaseException:
            self._abort()
            raise

    def _abort(self) -> None:
        self._aborted = True  # first: once a kernel ends by the abort, a check must see it
        if torch.cuda.is_available() and dist.is_initialized():
            try:
                dist.distributed_c10d._abort_process_group()
            except Exception as error:  # another thread uses or aborts the same groups; orders must still be heard
                log.warning("aborting the communicators: %r", error)
        for name, descriptor in self._sockets().items():
            if name not in self._foreign:
                _shut_down(descriptor)


def _shut_down(descriptor: int) -> None:
    """Cuts TCP connections only: a listener may still be used; local sockets are the agent's and the constructor's."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as mine:
        if mine.family == socket.AF_UNIX or mine.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return
        mine.shutdown(socket.SHUT_RDWR)
