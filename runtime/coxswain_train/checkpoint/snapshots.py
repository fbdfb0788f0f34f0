"""Copies of the owned state in host memory, from which a checkpoint is written while training goes on.

On CUDA the copy runs beside the next step's forward and backward, on a stream of its own, into pinned buffers that every
save uses again: one copy of the owned state, 12 bytes an owned element, as long as the worker is in its world. The update of
the next step waits for it on the device. On a CPU a save makes a copy, and frees it once all is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from coxswain.boxes import Box

State = dict[str, dict[Box, Tensor]]  # kind -> box -> values
StateEntry = tuple[str, Box, Tensor]


class Copied(Protocol):
    """A copy under way."""

    def wait(self) -> None:
        """The device's next work begins once it is done."""
        ...

    def synchronize(self) -> None:
        """Returns once it is done."""
        ...


class Snapshots(Protocol):
    """Copies the state in a fixed order. The copy before must have been read."""

    def take(self, state: State) -> tuple[list[StateEntry], Copied]: ...


def snapshot(state: State) -> list[StateEntry]:
    """A copy in host memory, in a fixed order."""
    return [(kind, box, x.to("cpu", copy=True)) for kind, box, x in _entries(state)]


def _entries(state: State) -> Iterable[StateEntry]:
    return ((kind, box, x) for kind, boxes in state.items() for box, x in boxes.items())


class _Done:
    def wait(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


class HostSnapshots:
    """Copies at once."""

    def take(self, state: State) -> tuple[list[StateEntry], Copied]:
        return snapshot(state), _Done()


class Side(Protocol):
    """A device's stream for copies, and its pinned memory."""

    def buffer(self, like: Tensor) -> Tensor: ...
    def copy(self, pairs: list[tuple[Tensor, Tensor]]) -> Copied:
        """Copies the second of each pair into the first, behind the device's work so far."""
        ...


class PinnedSnapshots:
    """Copies on the side, into buffers that stay."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._buffers: dict[tuple[str, Box], Tensor] = {}

    def take(self, state: State) -> tuple[list[StateEntry], Copied]:
        entries = list(_entries(state))
        for kind, box, x in entries:
            if (kind, box) not in self._buffers:
                self._buffers[kind, box] = self._side.buffer(x)
        held = [(kind, box, self._buffers[kind, box]) for kind, box, _ in entries]
        copied = self._side.copy([(host, x) for (_, _, host), (_, _, x) in zip(held, entries, strict=True)])
        return held, copied


class CudaSide:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def buffer(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def copy(self, pairs: list[tuple[Tensor, Tensor]]) -> Copied:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for host, x in pairs:
                host.copy_(x, non_blocking=True)
        event: Copied = self._stream.record_event()
        return event


def snapshots_of(device: torch.device) -> Snapshots:
    return PinnedSnapshots(CudaSide(device)) if device.type == "cuda" else HostSnapshots()
