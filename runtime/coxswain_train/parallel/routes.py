"""What one rank sends, receives and adds up for each bucket: index arrays, made once a world.

The parts of a bucket have one order, by owner, then cell, then row; every buffer holds some of them in that order (the
first hop's by column before owner). Gradients take a route forwards, and are added up where several arrive; weights take
one backwards, and are copied instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coxswain.boxes import Box, window
from coxswain.intervals import numbers_in
from coxswain.shards import Cell, Numbers, Shards
from coxswain_train.parallel.buckets import Bucket, Entries, entries_of, make_buckets
from coxswain_train.parallel.grid import Grid

Where = slice | Tensor  # places in a buffer of units
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Load:
    """A held parameter's units in the bucket, and their places in the packed buffer."""

    name: str
    held: Where
    packed: Where


@dataclass(frozen=True, slots=True)
class Arrival:
    """What one peer sends: all of it goes `into` a buffer. Of that, `first` is the first to arrive there, `more` is added.

    `first` and `more` are pairs: places in the buffer, places in the message.
    """

    into: Where
    first: tuple[Where, Where] | None
    more: tuple[Where, Where] | None


@dataclass(frozen=True, slots=True)
class Hop:
    """One `all_to_all`: units to and from each peer, and what becomes of those that arrive."""

    sends: list[int]
    receives: list[int]
    arrivals: list[Arrival]
    units: int  # of the buffer into which they are added up


@dataclass(frozen=True, slots=True)
class Own:
    """A part of the rank's own boxes: elements of the summed bucket [start, stop), and where these begin in its state."""

    start: int
    stop: int
    state: int


@dataclass(frozen=True, slots=True)
class Route:
    unit: int
    names: frozenset[str]  # of the held parameters with a part in the bucket
    loads: list[Load]
    hops: list[Hop]
    owned: list[Own]

    @property
    def packed(self) -> int:
        """Elements of the rank's own part of the bucket."""
        return sum(self.hops[0].sends) * self.unit


def make_routes(
    shards: Shards, me: int, grid: Grid, device: torch.device, elements: int
) -> tuple[list[Route], list[Route]]:
    """The routes of gradients, and those of weights. `elements`: about as many as a bucket has."""
    buckets = make_buckets(shards, elements)
    gradients, weights = (RouteMaker(shards, me, grid, device, counting) for counting in (True, False))
    there = [gradients.make(bucket) for bucket in buckets]
    ways = zip(buckets, there, strict=True)
    return there, [route if gradients.same(weights, bucket) else weights.make(bucket) for bucket, route in ways]


class RouteMaker:
    """Makes the routes of one rank. `counting`: for gradients, which holders that do not count do not send."""

    def __init__(self, shards: Shards, me: int, grid: Grid, device: torch.device, counting: bool) -> None:
        self._shards, self._me, self._grid, self._device = shards, me, grid, device
        self._holds = shards.holds(counting)
        self._tables: dict[range, Flags] = {}  # by ranks, which cells they hold
        self._held = {h.box.name: h.box for h in shards.holdings[shards.group_of[me]]}
        self._columns = np.array([grid.column_of(rank) for rank in range(grid.ranks)])
        sizes = ((stop - start) * cell.row for cell in shards.cells for start, stop in [cell.rows_of(me)])
        self._state = [0, *accumulate(sizes)]  # by cell, where this rank's rows of it begin

    def same(self, other: RouteMaker, bucket: Bucket) -> bool:
        """Whether all that hold a cell of the bucket send its gradient."""
        cells = [item.cell for item in bucket.items]
        return bool((self._holds[:, cells] == other._holds[:, cells]).all())

    def make(self, bucket: Bucket) -> Route:
        entries = entries_of(self._shards, bucket)
        mine = entries.where(self._held_by(range(self._me, self._me + 1), entries))
        mine = mine.where(np.argsort(self._columns[mine.owner], kind="stable"))
        hops = [self._row_hop(entries, mine)] + ([self._column_hop(entries)] if self._grid.hops == 2 else [])
        own = entries.where(entries.owner == self._me)
        loads, owned = list(self._loads(bucket, mine)), list(self._owned(bucket, own))
        return Route(bucket.unit, frozenset(load.name for load in loads), loads, hops, owned)

    def _held_by(self, ranks: range, entries: Entries) -> Flags:
        """Which entries at least one of the ranks holds."""
        if ranks not in self._tables:
            groups = np.unique(self._shards.group_of[ranks.start : ranks.stop])
            self._tables[ranks] = np.logical_or.reduce(self._holds[groups])
        found: Flags = self._tables[ranks][entries.cell]
        return found

    def _row_hop(self, entries: Entries, mine: Entries) -> Hop:
        row = self._grid.row(self._grid.row_of(self._me))
        sends = np.bincount(self._columns[mine.owner], mine.units, minlength=len(row)).astype(np.int64)
        passing = self._passing(entries, row)
        senders = [self._held_by(range(sender, sender + 1), passing) for sender in row]
        return self._hop(sends, passing, senders)

    def _column_hop(self, entries: Entries) -> Hop:
        grid, me = self._grid, self._me
        column = grid.column(grid.column_of(me))
        passing = self._passing(entries, grid.row(grid.row_of(me)))
        sends = np.bincount(np.searchsorted(column, passing.owner), passing.units, minlength=len(column)).astype(
            np.int64
        )
        own = entries.where(entries.owner == me)
        rows = [grid.row(grid.row_of(peer)) if grid.forwards(peer) else range(0) for peer in column]
        return self._hop(sends, own, [self._held_by(row, own) for row in rows])

    def _passing(self, entries: Entries, row: range) -> Entries:
        """What this rank adds up for the owners of its column."""
        if not self._grid.forwards(self._me):
            return entries.where(np.zeros(len(entries.owner), dtype=np.bool_))
        some = entries.where(self._columns[entries.owner] == self._grid.column_of(self._me))
        return some.where(self._held_by(row, some))

    def _hop(self, sends: Numbers, arriving: Entries, senders: Sequence[Flags]) -> Hop:
        """`senders`: for each peer, which of the arriving entries it sends."""
        seen = np.zeros(len(arriving.owner), dtype=np.bool_)
        known: dict[tuple[bytes, bytes], Arrival] = {}  # most peers send the same
        arrivals = []
        for flags in senders:
            key = flags.tobytes(), seen.tobytes()
            if key not in known:
                known[key] = self._arrival(arriving.units, flags, seen)
            arrivals.append(known[key])
            seen = seen | flags
        receives = [int(arriving.units[flags].sum()) for flags in senders]
        return Hop([int(n) for n in sends], receives, arrivals, int(arriving.units.sum()))

    def _arrival(self, units: Numbers, flags: Flags, seen: Flags) -> Arrival:
        offsets = np.cumsum(units) - units
        into, lengths, new = offsets[flags], units[flags], ~seen[flags]
        of = np.cumsum(lengths) - lengths

        def pair(chosen: Flags) -> tuple[Where, Where] | None:
            each = lengths[chosen]
            return (
                (self._where(numbers_in(into[chosen], each)), self._where(numbers_in(of[chosen], each)))
                if len(each)
                else None
            )

        return Arrival(self._where(numbers_in(into, lengths)), pair(new), pair(~new))

    def _loads(self, bucket: Bucket, mine: Entries) -> Iterator[Load]:
        offsets = np.cumsum(mine.units) - mine.units
        for number, item in enumerate(bucket.items):
            chosen = mine.item == number
            if chosen.any():
                cell = self._shards.cells[item.cell]
                units = _units(self._held[cell.box.name], cell, bucket.unit)
                held = units[numbers_in(mine.row[chosen], mine.rows[chosen])].ravel()
                packed = numbers_in(offsets[chosen], mine.units[chosen])
                yield Load(cell.box.name, self._where(held), self._where(packed))

    def _owned(self, bucket: Bucket, own: Entries) -> Iterator[Own]:
        start = 0
        for item, row, units in zip(own.item, own.row, own.units, strict=True):
            number = bucket.items[int(item)].cell
            cell = self._shards.cells[number]
            stop = start + int(units) * bucket.unit
            yield Own(start, stop, self._state[number] + (int(row) - cell.rows_of(self._me)[0]) * cell.row)
            start = stop

    def _where(self, places: Numbers) -> Where:
        if not len(places):
            return slice(0, 0)
        first, last = int(places[0]), int(places[-1])
        if last - first + 1 == len(places) and bool((np.diff(places) == 1).all()):
            return slice(first, last + 1)
        return torch.from_numpy(places).to(self._device)


def _units(held: Box, cell: Cell, unit: int) -> Numbers:
    """[rows of the cell, units of a row]: each unit's number in the held box."""
    tails = [prod(held.shape[d + 1 :]) for d in range(len(held.shape))]
    last = next(d for d, tail in enumerate(tails) if tail <= unit)
    step = unit // tails[last]
    every = np.arange(held.elements // unit).reshape(*held.shape[:last], held.shape[last] // step)
    *outer, inner = window(held, cell.box)[: last + 1]
    inside: Numbers = every[(*outer, slice(inner.start // step, inner.stop // step))]
    return inside.reshape(cell.box.shape[0], -1)
