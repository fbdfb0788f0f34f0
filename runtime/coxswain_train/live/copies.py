"""Copies of shards: what changes a shard goes to the rank that holds its copy, in windows on the P2P communicator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
        self._pass(mine, into)
        return into

    def fill(self, own: State, room: State) -> None:
        """Fills the copy with the ward's values."""
        for kind in KINDS:
            self._pass(own[kind], room[kind])

    def _pass(self, mine: Tensor, into: Tensor) -> None:
        holder, each = self.wards.index(self.me), self.window // mine.element_size()
        for start in range(0, max(len(mine), len(into)), each):
            sent, received = mine[start : start + each], into[start : start + each]
            self.everyone.start([(holder, sent)], [(self.wards[self.me], received)]).wait()
