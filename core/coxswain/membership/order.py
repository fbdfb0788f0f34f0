"""The order in which a pass over a source draws its samples.

It has two levels: the source's blocks are permuted, then the samples within each window of `WINDOW`
successive blocks. A loader reads a few blocks at a time, nearly sequentially. Neighbours in the
stream still come from different objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coxswain.membership.permutation import Permutation, key_of

WINDOW = 8
"""Blocks that are shuffled together. A change needs a new VERSION: it changes the stream."""

_BATCH = 1024  # draws that are computed together; the result does not depend on it
_WINDOWS_AHEAD = 8  # that are fetched together at most, where blocks have few samples


Fetch = Callable[[Mapping[str, Sequence[int]]], None]
"""Reads the lengths of these blocks, by source, side by side: they are asked for next. What it leaves out is read then."""


def fetch_nothing(blocks: Mapping[str, Sequence[int]]) -> None:
    """Of views whose lengths are in memory."""


@dataclass(frozen=True)
class SourceView:
    """A source as membership sees it: samples per block, and their token counts on demand."""

    name: str  # in the mix
    counts: NDArray[np.int64]  # readable samples per block, in index order
    lengths: Callable[[int], NDArray[np.uint32]]  # token counts of the samples of the b-th block
    shortest: int = 0  # token count of the shortest sample; 0: not known

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Index of each block's first sample; the last entry is the number of all samples."""
        return np.append(0, np.cumsum(self.counts))

    @property
    def samples(self) -> int:
        return int(self.starts[-1])


class PassOrder:
    """The draws of one (source, pass): `at(n)` is the n-th. Caches the latest batch only."""

    def __init__(self, seed: int, view: SourceView, epoch: int) -> None:
        self._view, self._name = view, (seed, view.name, epoch)
        blocks = np.arange(len(view.counts), dtype=np.int64)
        self._blocks = Permutation(len(blocks), key_of(*self._name, "blocks"))(blocks)
        self._before = np.append(0, np.cumsum(view.counts[self._blocks]))
        self._batch: tuple[int, list[tuple[int, int]]] = 0, []  # its first draw, and each (index, length)
        self._fetched = range(0)  # draws whose blocks `to_fetch` has named

    def at(self, n: int) -> tuple[int, int]:
        """Returns the n-th draw: (the sample's index in the source, its token count)."""
        first, found = self._batch
        if not first <= n < first + len(found):
            self._batch = first, found = n, list(map(tuple, self._draw(n).tolist()))
        return found[n - first]

    def to_fetch(self, n: int, most: int = _WINDOWS_AHEAD) -> list[int]:
        """The blocks of n's window and, where these have few samples, of up to `most` windows. Empty: named before."""
        if n in self._fetched:
            return []
        window, windows = self._window(n), -(-len(self._blocks) // WINDOW)
        enough = self._window(min(n + _BATCH, int(self._before[-1])) - 1) + 1
        stop = min(enough, window + most, windows)
        blocks = slice(window * WINDOW, min(stop * WINDOW, len(self._blocks)))
        self._fetched = range(int(self._before[blocks.start]), int(self._before[blocks.stop]))
        return [int(b) for b in self._blocks[blocks] if self._view.counts[b]]

    def _window(self, n: int) -> int:
        return int(np.searchsorted(self._before, n, side="right") - 1) // WINDOW

    def _draw(self, n: int) -> NDArray[np.int64]:
        """Returns (index, length) of draws n, n + 1, ... to the end of n's window, at most `_BATCH`."""
        window = self._window(n)
        edges = self._before[window * WINDOW : (window + 1) * WINDOW + 1] - self._before[window * WINDOW]
        offset = n - int(self._before[window * WINDOW])
        positions = np.arange(offset, min(offset + _BATCH, int(edges[-1])), dtype=np.int64)
        shuffled = Permutation(int(edges[-1]), key_of(*self._name, "window", window))(positions)
        return self._look_up(window, edges, shuffled)

    def _look_up(self, window: int, edges: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Maps positions in the window's concatenated blocks to (index in the source, length)."""
        places = np.searchsorted(edges, positions, side="right") - 1
        out = np.empty((len(positions), 2), dtype=np.int64)
        for place in np.unique(places):
            mine = places == place
            block = int(self._blocks[window * WINDOW + place])
            within = positions[mine] - edges[place]
            out[mine, 0] = self._view.starts[block] + within
            out[mine, 1] = self._view.lengths(block)[within]
        return out
