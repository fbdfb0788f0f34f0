"""Levels blocks of replicas by exchanges of sequences between the block that ends last and any other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import Floats

Ints = NDArray[np.int64]
EXCHANGES = 3  # per block, at most
LEVEL = 1.003  # times the mean: good enough to stop
PAIRS = 50_000  # exchanges of two sequences against two are tried where there are at most so many
ATTEMPTS = (1, 16), (1, 1 << 30), (2, 1 << 30)  # sequences a side, and blocks asked: until one helps
GAIN = 1e-9  # of a second


@dataclass(slots=True)
class Blocks:
    """Which sequence is in which block, and when each block ends. Blocks of equal degree and rate are of one class."""

    of: Ints  # per block its class
    seconds: Floats  # per class and sequence; inf: does not fit
    where: Ints
    loads: Floats

    def level(self, goal: float) -> None:
        """Exchanges sequences until every block ends by the goal, or none helps any more."""
        most = EXCHANGES if len(self.seconds) < self.loads.size / 2 else 1
        for _ in range(most * self.loads.size):
            top = int(self.loads.argmax())
            if self.loads[top] <= goal or not any(self._exchange(top, most, count) for most, count in ATTEMPTS):
                return

    def _exchange(self, top: int, most: int, count: int) -> bool:
        """Gives up to `most` sequences of a block for as many of another or none, where the later of both ends first.

        The other one is among the `count` blocks that end first.
        """
        mine = _sets(np.flatnonzero(self.where == top), self.where, most)
        theirs, blocks = self._others(top, most, count)
        if not len(mine) or len(mine) * len(theirs) > PAIRS:
            return False
        padded = np.concatenate([self.seconds, np.zeros((len(self.seconds), 1))], axis=1)
        here, there = padded[self.of[top]], self.of[blocks]
        change = here[theirs].sum(axis=1) - here[mine].sum(axis=1)[:, None]
        left = padded[there[:, None], theirs].sum(axis=1)
        come = padded[:, mine].sum(axis=2)[there].T
        ends = np.maximum(self.loads[top] + change, self.loads[blocks] - left + come)
        give, take = divmod(int(ends.argmin()), len(theirs))
        if not ends[give, take] < self.loads[top] - GAIN:
            return False
        other = int(blocks[take])
        self.loads[top] += change[give, take]
        self.loads[other] += come[give, take] - left[take]
        self.where[mine[give][mine[give] >= 0]] = other
        self.where[theirs[take][theirs[take] >= 0]] = top
        return True

    def _others(self, top: int, most: int, count: int) -> tuple[Ints, Ints]:
        """What other blocks can give, and which block that is; nothing is one of the choices."""
        asked = np.argsort(self.loads, kind="stable")[:count]
        asked = asked[asked != top]
        able = np.zeros(self.loads.size, dtype=bool)
        able[asked] = True
        sets = _sets(np.flatnonzero(able[self.where]), self.where, most)
        nothing = np.full((asked.size, 2), -1)
        return np.concatenate([sets, nothing]), np.concatenate([self.where[sets[:, 0]], asked])


def _sets(items: Ints, where: Ints, most: int) -> Ints:
    """Returns single items, and pairs of one block if `most` is 2, as rows of two; -1: none."""
    single = np.stack([items, np.full_like(items, -1)], axis=1)
    if most < 2:
        return single
    order = items[np.argsort(where[items], kind="stable")]
    groups = np.split(order, np.flatnonzero(np.diff(where[order])) + 1)
    pairs = [pair for group in groups for pair in combinations(group.tolist(), 2)]
    return np.concatenate([single, np.array(pairs, dtype=np.int64).reshape(-1, 2)])
