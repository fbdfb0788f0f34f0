"""Activations in host memory between forward and backward, by saved-tensor hooks (ByteScale, arXiv 2502.21231, section 4.3).

Whole tensors go, in the order in which they are saved, as long as their bytes stay within the ratio. On CUDA they travel
on streams of their own through pinned memory, and come back one layer ahead of the backward that needs them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

Arriving = tuple[Tensor, Any]  # a tensor, and the event after which it is there


class Copies(Protocol):
    """Moves tensors between device and host. `smallest`: bytes below which a tensor stays."""

    smallest: int

    def save(self, x: Tensor) -> Tensor: ...
    def load(self, host: Tensor) -> Arriving: ...
    def arrive(self, arriving: Arriving) -> Tensor: ...


class HostCopies:
    """On a CPU both sides are host memory: a copy shows that nothing else is used."""

    smallest = 0

    def save(self, x: Tensor) -> Tensor:
        return x.detach().clone()

    def load(self, host: Tensor) -> Arriving:
        return host, None

    def arrive(self, arriving: Arriving) -> Tensor:
        return arriving[0]


class CudaCopies:
    """Pinned memory comes from torch's cache of it, so it is allocated once. Each direction has a stream."""

    smallest = 1 << 20

    def __init__(self, device: torch.device) -> None:
        self._out, self._back = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]
        self._device = device

    def save(self, x: Tensor) -> Tensor:
        host = torch.empty_like(x, device="cpu", pin_memory=True)
        self._out.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._out):
            host.copy_(x.detach(), non_blocking=True)
        x.record_stream(self._out)  # the allocator gives this memory away only once it is copied
        return host

    def load(self, host: Tensor) -> Arriving:
        self._back.wait_stream(self._out)
        with torch.cuda.stream(self._back):
            x = torch.empty_like(host, device=self._device)
            x.copy_(host, non_blocking=True)
        return x, self._back.record_event()

    def arrive(self, arriving: Arriving) -> Tensor:
        """The current stream goes on once the tensor is there."""
        x, there = arriving
        current = torch.cuda.current_stream(self._device)
        current.wait_event(there)
        x.record_stream(current)
        return x


@dataclass(slots=True, eq=False)
class Moved:
    """A saved tensor in host memory. `uses`: how many operations of its layer saved it."""

    host: Tensor
    layer: int
    uses: int = 1
    arriving: Arriving | None = None


class Kept(NamedTuple):
    """A saved tensor that stays on the device, and the version of its memory when it was saved."""

    tensor: Tensor
    version: int


class Offloader:
    """The hooks of one task's forward. `pinned`: addresses of storages that stay, such as weights."""

    def __init__(self, ratio: float, pinned: frozenset[int], copies: Copies) -> None:
        self._ratio, self._pinned, self._copies = ratio, pinned, copies
        self.seen = self.moved = 0  # bytes that could go, and that went
        self._layer = 0
        self._layers: dict[int, list[Moved]] = {}
        self._known: dict[tuple[Any, ...], Moved | None] = {}
        self._alive: list[StorageWeakRef] = []  # no address of a storage is used again while it is a key

    def layer(self, number: int) -> AbstractContextManager[Any]:
        """Hooks for what the layer of this number saves."""
        self._layer = number
        self._known.clear()
        self._alive.clear()
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, x: Tensor) -> Kept | Moved:
        """Never `x` itself: an operation that saves its output would hold itself, and a step that breaks off leave its graph."""
        storage = x.untyped_storage()
        if storage.data_ptr() in self._pinned or _is_view_alone(x):
            return Kept(x.detach(), x._version)
        reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        key = reference.cdata, x.dtype, x.storage_offset(), x.shape, x.stride(), x._version
        if key not in self._known:
            self._alive.append(reference)
            self._known[key] = self._move(x)
        elif (again := self._known[key]) is not None:
            again.uses += 1
        return self._known[key] or Kept(x.detach(), x._version)

    def _move(self, x: Tensor) -> Moved | None:
        if x.nbytes < self._copies.smallest:
            return None
        self.seen += x.nbytes
        if self.moved + x.nbytes > self._ratio * self.seen:
            return None
        self.moved += x.nbytes
        moved = Moved(self._copies.save(x), self._layer)
        self._layers.setdefault(self._layer, []).append(moved)
        return moved

    def _unpack(self, saved: Kept | Moved) -> Tensor:
        """Raises RuntimeError where memory that stayed was changed since: torch checks that only where there are no hooks."""
        if isinstance(saved, Kept):
            if saved.tensor._version != saved.version:
                raise RuntimeError(_changed(saved))
            return saved.tensor
        for layer in (saved.layer, saved.layer - 1):  # the one whose backward comes next is under way meanwhile
            self._prefetch(self._layers.pop(layer, []))
        return self._use(saved)

    def _prefetch(self, layer: list[Moved]) -> None:
        for moved in layer:
            moved.arriving = self._copies.load(moved.host)

    def _use(self, moved: Moved) -> Tensor:
        arriving = moved.arriving or self._copies.load(moved.host)
        moved.uses -= 1
        moved.arriving = arriving if moved.uses > 0 else None
        return self._copies.arrive(arriving)


def _changed(saved: Kept) -> str:
    return (
        f"a tensor of shape {list(saved.tensor.shape)} that backward needs was changed in place since forward saved it (version "
        f"{saved.tensor._version}, saved at {saved.version}); let the model make a new tensor there"
    )


def _is_view_alone(x: Tensor) -> bool:
    """Whether the memory does not say the values: it has gaps, or torch changes their signs whenever it reads them, on the host
    before a copy there has ended."""
    return x.is_conj() or x.is_neg() or not torch.ops.aten.is_non_overlapping_and_dense(x)
