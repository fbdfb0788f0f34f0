"""The square of the global gradient norm, bit by bit the same however the gradient's rows are shared among ranks.

Squares are added up in fp64 over leaves: 64 successive elements of a row. Leaves are then added up exactly, in any order:
each is cut at a fixed grid of bits, 36 to a bin, and its part in each of the three highest bins is an integer (Demmel and
Nguyen, "Parallel Reproducible Summation", 2015). Ranks exchange bins; what is below the highest three of all ranks counts
on none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import gcd, prod

import torch
from torch import Tensor

from coxswain.boxes import Box

WIDTH = 36  # bits of a bin
BINS = 3
_LEAF = 64  # elements
_CPU_BLOCK, _BLOCK = 1 << 15, 1 << 22  # elements that are squared at a time; in a CPU's cache, and by one thread
_PIECE = 1 << 16  # leaves whose parts of a bin are added up in fp64: 36 + 16 + 1 bits
_FLOOR = -20  # the lowest bin: gradients below about 1e-108 count as zero
_LARGEST = 2.0**930
Run = tuple[int, int, int]  # elements [start, stop) of the packed buffer, in leaves of so many


@dataclass(frozen=True, slots=True)
class Square:
    """A sum of squares: `counts[i]` units of 2^(WIDTH * (top - i)). `top` is inf or nan where the sum is not finite."""

    top: float = _FLOOR
    counts: tuple[int, ...] = (0,) * BINS

    def row(self) -> list[float]:
        """Numbers that fp64 holds exactly."""
        return [self.top, *(part for count in self.counts for part in (float(count >> 32), float(count & 0xFFFFFFFF)))]

    @classmethod
    def of(cls, row: Sequence[float]) -> Square:
        pairs = zip(row[1::2], row[2::2], strict=True)
        return cls(row[0], tuple((int(high) << 32) + int(low) for high, low in pairs))


ROW = 1 + 2 * BINS  # numbers of a row


def norm_of(squares: Sequence[Square]) -> float:
    """Of the gradients of all ranks together."""
    tops = [square.top for square in squares]
    if not all(map(math.isfinite, tops)):
        return math.nan if any(map(math.isnan, tops)) else math.inf
    top = int(max(tops))
    low, total = top - BINS + 1, 0
    for square in squares:
        for place, count in enumerate(square.counts):
            bin_ = int(square.top) - place
            total += count << (WIDTH * (bin_ - low)) if bin_ >= low else 0
    return math.sqrt(math.ldexp(float(total), WIDTH * low))


def runs_of(boxes: Sequence[Box]) -> list[Run]:
    """Successive boxes whose rows have leaves of one length."""
    found, start = [], 0
    for leaf, same in groupby(boxes, lambda box: gcd(prod(box.shape[1:]), _LEAF)):
        stop = start + sum(box.elements for box in same)
        found.append((start, stop, leaf))
        start = stop
    return found


def square_of(gradient: Tensor, runs: Sequence[Run], block: int = _CPU_BLOCK) -> Square:
    """Of one rank's packed gradient; on a CPU with `block` elements in fp64 at a time. Waits for the device twice."""
    parts = [leaves for run in runs for leaves in _leaves(gradient, run, min(block, _CPU_BLOCK))]
    if not parts:
        return Square()
    leaves = torch.cat(parts)
    largest = float(leaves.max())  # nan where one is
    if largest == 0.0:  # in the lowest bin, as where nothing is owned: a higher one would cut what other ranks have
        return Square()
    if not largest < _LARGEST:
        return Square(top=largest if math.isnan(largest) else math.inf)
    top = max(_FLOOR, math.frexp(largest)[1] // WIDTH)
    return Square(top, tuple(_counts(leaves, top)))


def _leaves(gradient: Tensor, run: Run, most: int) -> Iterator[Tensor]:
    """Sums of squares. On a device always of blocks of one shape: its order of adding up depends on that."""
    start, stop, leaf = run
    cpu = gradient.device.type == "cpu"
    size = max(leaf, most - most % leaf) if cpu else _BLOCK
    for first in range(start, stop, size):
        part = gradient[first : min(first + size, stop)]
        block = part.new_zeros(len(part) if cpu else size, dtype=torch.float64)
        block[: len(part)] = part
        yield block.square_().view(-1, leaf).sum(1)[: len(part) // leaf]


def _counts(leaves: Tensor, top: int) -> Iterator[int]:
    rest = leaves
    for place in range(top, top - BINS, -1):
        grid = 1.5 * 2.0 ** (52 + WIDTH * place)
        cut = (rest + grid).sub_(grid)
        rest = rest - cut
        sums = torch.stack([piece.sum() for piece in torch.split(cut, _PIECE)]).tolist()
        yield sum(int(math.ldexp(each, -WIDTH * place)) for each in sums)
