"""A step's tokens in shared memory: sealed memfds, each mapped by all ranks of a replica that need the same columns.

Memfds have no name in a file system, so a SIGKILL leaves nothing behind. numpy only.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import weakref
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coxswain.errors import Retryable
from coxswain.layout import Layout, Seat

NO_LABEL = -100  # what cross entropy ignores
_HEADER = struct.Struct("<8sQQQQ")  # magic, generation, step, tokens, slices
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class Columns(NamedTuple):
    """What the ranks of a stage need besides positions and slices: tokens on the first one, labels on the last."""

    tokens: bool = True
    labels: bool = True


_COLUMNS = {
    b"COXSTEP1": Columns(), b"COXSTEPT": Columns(labels=False), b"COXSTEPL": Columns(tokens=False),
    b"COXSTEPP": Columns(tokens=False, labels=False),
}  # fmt: skip
_MAGIC = {columns: magic for magic, columns in _COLUMNS.items()}


def columns_of(layout: Layout, seat: Seat) -> Columns:
    """What the rank of this seat needs."""
    last = len(layout.replicas[seat.replica].stages) - 1
    return Columns(tokens=seat.stage == 0, labels=seat.stage == last)


class StepSlice(NamedTuple):
    """Tokens [start, stop) of the membership's `sequence`-th, at `offset` of the arrays."""

    task: int
    sequence: int
    start: int
    stop: int
    offset: int


@dataclass(frozen=True, slots=True)
class StepArrays:
    """What one rank computes in one step: int32 views, one entry per token, slices in task order.

    Read-only.

    `positions` count within the sequence; `labels` are NO_LABEL where there is none. `tokens` are
    empty but on the first stage of a replica, `labels` but on the last.
    """

    generation: int
    step: int
    tokens: NDArray[np.int32]
    labels: NDArray[np.int32]
    positions: NDArray[np.int32]
    slices: tuple[StepSlice, ...]

    def only(self, columns: Columns) -> StepArrays:
        """The same step without the columns that are not needed."""
        none = np.empty(0, np.int32)
        tokens, labels = self.tokens if columns.tokens else none, self.labels if columns.labels else none
        return replace(self, tokens=tokens, labels=labels)

    @property
    def columns(self) -> Columns:
        """A step without tokens has all columns."""
        count = len(self.positions)
        return Columns(len(self.tokens) == count, len(self.labels) == count)


class Buffer:
    """An open, sealed memfd.

    It closes with its last reference: a hand-over in progress keeps it open.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        weakref.finalize(self, os.close, fd)


def pack(arrays: StepArrays) -> Buffer:
    """Writes arrays and slices into a sealed memfd."""
    magic = _MAGIC[arrays.columns]
    header = _HEADER.pack(magic, arrays.generation, arrays.step, len(arrays.positions), len(arrays.slices))
    table = np.array(arrays.slices, dtype="<i8")
    buffer = Buffer(os.memfd_create("coxswain-step", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    with open(buffer.fd, "wb", closefd=False) as file:
        file.write(header + table.tobytes())
        for column in (arrays.tokens, arrays.labels, arrays.positions):
            file.write(np.ascontiguousarray(column, dtype="<i4").data.cast("B"))
    fcntl.fcntl(buffer.fd, fcntl.F_ADD_SEALS, _SEALS)
    return buffer


def unpack(fd: int) -> StepArrays:
    """Maps a memfd made by `pack`. The arrays keep the pages mapped; `fd` may be closed."""
    mapping = mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
    magic, generation, step, tokens, slices = _HEADER.unpack_from(mapping)
    columns = _COLUMNS.get(magic)
    if columns is None:
        raise Retryable(f"the constructor handed over something else than a step (it starts with {magic!r})")
    width = len(StepSlice._fields)
    table = np.frombuffer(mapping, "<i8", slices * width, _HEADER.size).reshape(-1, width)
    counts = (tokens * columns.tokens, tokens * columns.labels, tokens)
    places = _HEADER.size + table.nbytes + 4 * np.cumsum([0, *counts])
    ids, labels, positions = (np.frombuffer(mapping, "<i4", n, int(at)) for n, at in zip(counts, places, strict=False))
    return StepArrays(generation, step, ids, labels, positions, tuple(StepSlice(*row) for row in table.tolist()))
