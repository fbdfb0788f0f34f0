"""The hops of an exchange between all ranks: one up to 64 ranks, above that two over about sqrt(n) peers each.

Rows are adjacent ranks, so mostly of one node. First, each rank sends within its row to the member in the owner's column,
which adds up what it gets; then these sums go to the owner within the column. Weights take the same ways back.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from math import isqrt

FLAT_RANKS = 64  # up to which a rank talks to all others


@dataclass(frozen=True)
class Grid:
    """Ranks in rows of almost equal length."""

    ranks: int
    flat_ranks: int = FLAT_RANKS

    @cached_property
    def starts(self) -> list[int]:
        """The first rank of each row."""
        rows = 1 if self.ranks <= self.flat_ranks else isqrt(self.ranks)
        return [self.ranks * row // rows for row in range(rows)]

    @property
    def width(self) -> int:
        """Columns; a longer row has two members in one of them."""
        return self.ranks // len(self.starts)

    @property
    def hops(self) -> int:
        return 1 if len(self.starts) == 1 else 2

    def row_of(self, rank: int) -> int:
        return bisect_right(self.starts, rank) - 1

    def column_of(self, rank: int) -> int:
        row = self.row_of(rank)
        place = rank - self.starts[row]
        return place if place < self.width else row % self.width

    def forwards(self, rank: int) -> bool:
        """Whether it is its row's member for its column."""
        return rank - self.starts[self.row_of(rank)] < self.width

    def row(self, number: int) -> range:
        """The members of a row."""
        return range(self.starts[number], [*self.starts, self.ranks][number + 1])

    def column(self, number: int) -> list[int]:
        """The members of a column, by rank."""
        return self._columns[number]

    @cached_property
    def _columns(self) -> list[list[int]]:
        columns: list[list[int]] = [[] for _ in range(self.width)]
        for rank in range(self.ranks):
            columns[self.column_of(rank)].append(rank)
        return columns
