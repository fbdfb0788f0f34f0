"""Copies of shards: what changes a shard goes to the rank that holds its copy, in windows on the P2P communicator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from coxswain_train.model.ring import Exchange
from coxswain_train.parallel.state import KINDS, State

WINDOW_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Copies:
    """Rank `me`'s part in it. `wards`: by rank; () where no copies are kept. `everyone`: all ranks."""

    everyone: Exchange
    me: int
    wards: Sequence[int]
    sizes: Sequence[int] = ()  # elements of every rank's shard
    window: int = WINDOW_BYTES

    @property
    def ward(self) -> int | None:
        return self.wards[self.me] if self.wards else None

    def exchange(self, mine: Tensor) -> Tensor | None:
        """Sends this to the holder of the own shard's copy; returns the ward's. None where no copies are kept."""
        if not self.wards:
            return None
        into = mine.new_empty(self.sizes[self.wards[self.me]])
        self._pass([mine], [into])
        return into

    def fill(self, own: State, room: State) -> None:
        """Fills the copy with the ward's values."""
        for kind in KINDS:
            self._pass(own.values(kind), room.values(kind))

    def _pass(self, mine: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        holder, ward = self.wards.index(self.me), self.wards[self.me]
        none: list[Tensor] = []
        for sent, received in zip_longest(self._windows(mine), self._windows(into), fillvalue=none):
            self.everyone.start([(holder, part) for part in sent], [(ward, part) for part in received]).wait()

    def _windows(self, values: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """All elements in their order, in parts of at most `window` bytes together. Equal shapes are cut alike."""
        found, room = list[Tensor](), self.window
        for part in (p for each in values for p in torch.split(each.view(-1), self.window // each.element_size())):
            if part.nbytes > room:
                yield found
                found, room = [], self.window
            found.append(part)
            room -= part.nbytes
        if found:
            yield found
