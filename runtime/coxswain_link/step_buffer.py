"""A step's tokens in shared memory: one sealed memfd a replica and step, mapped by all its ranks.

Memfds have no name in a file system, so a SIGKILL leaves nothing behind. numpy only.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import weakref
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coxswain.errors import Retryable

NO_LABEL = -100  # what cross entropy ignores
_HEADER = struct.Struct("<8sQQQQ")  # magic, generation, step, tokens, slices
_MAGIC = b"COXSTEP1"
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


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

    `positions` count within the sequence; `labels` are NO_LABEL where there is none.
    """

    generation: int
    step: int
    tokens: NDArray[np.int32]
    labels: NDArray[np.int32]
    positions: NDArray[np.int32]
    slices: tuple[StepSlice, ...]


class Buffer:
    """An open, sealed memfd.

    It closes with its last reference: a hand-over in progress keeps it open.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        weakref.finalize(self, os.close, fd)


def pack(arrays: StepArrays) -> Buffer:
    """Writes arrays and slices into a sealed memfd."""
    header = _HEADER.pack(_MAGIC, arrays.generation, arrays.step, len(arrays.tokens), len(arrays.slices))
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
    if magic != _MAGIC:
        raise Retryable(f"the constructor handed over something else than a step (it starts with {magic!r})")
    width = len(StepSlice._fields)
    table = np.frombuffer(mapping, "<i8", slices * width, _HEADER.size).reshape(-1, width)
    first = _HEADER.size + table.nbytes
    ids, labels, positions = (np.frombuffer(mapping, "<i4", tokens, first + 4 * tokens * i) for i in range(3))
    return StepArrays(generation, step, ids, labels, positions, tuple(StepSlice(*row) for row in table.tolist()))
