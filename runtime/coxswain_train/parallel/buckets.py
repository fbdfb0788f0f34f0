"""Buckets of the exchange: parts of cells that travel together, last layers first, in an order that all ranks share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from coxswain.shards import Numbers, Shards

BUCKET_BYTES = 25 << 20  # of one rank's gradients in a bucket, as in torch's DDP


@dataclass(frozen=True, slots=True)
class Item:
    """The `part`-th of `parts` of every owner's rows of a cell (its number)."""

    cell: int
    part: int
    parts: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Items whose cells have one unit, so that one index of units moves all of an item."""

    unit: int  # elements
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Entries:
    """Each owner's rows of each item, by owner, then item; those without a row are left out."""

    owner: Numbers
    item: Numbers  # index in the bucket
    cell: Numbers
    row: Numbers  # the first, counted from the cell's first
    rows: Numbers
    units: Numbers

    def where(self, chosen: np.ndarray) -> Entries:
        every = (self.owner, self.item, self.cell, self.row, self.rows, self.units)
        return Entries(*(each[chosen] for each in every))


def make_buckets(shards: Shards, elements: int) -> list[Bucket]:
    """Buckets of about so many elements on any one rank, in the order in which a backward completes them."""
    order = sorted(np.flatnonzero(shards.travels).tolist(), key=lambda number: (shards.cells[number].unit, -number))
    found = [
        Bucket(unit, items)
        for unit, numbers in groupby(order, key=lambda number: shards.cells[number].unit)
        for items in _fill(shards, list(numbers), elements)
    ]
    places = {name: place for place, name in enumerate(dict.fromkeys(h.box.name for g in shards.holdings for h in g))}

    def last(bucket: Bucket) -> int:
        return min(places[shards.cells[item.cell].box.name] for item in bucket.items)

    return sorted(found, key=lambda bucket: (-last(bucket), bucket.unit))


def _fill(shards: Shards, cells: Sequence[int], elements: int) -> Iterator[tuple[Item, ...]]:
    """Puts each item into the first bucket, not before the last of its holders', in which all of them have room."""
    open_bucket = [0] * len(shards.holdings)  # by group
    loads: dict[tuple[int, int], int] = {}  # by group and bucket
    filled: dict[int, list[Item]] = {}
    for cell in cells:
        size, holders = shards.cells[cell].box.elements, shards.cells[cell].holders
        parts = min(-(-size // elements), int(np.diff(shards.cells[cell].cuts).max()))
        for part in range(parts):
            bucket = max(open_bucket[group] for group in holders)
            full = any(0 < loads.get((group, bucket), 0) > elements - size // parts for group in holders)
            bucket += full
            for group in holders:
                open_bucket[group] = bucket
                loads[group, bucket] = loads.get((group, bucket), 0) + size // parts
            filled.setdefault(bucket, []).append(Item(cell, part, parts))
    return (tuple(filled[bucket]) for bucket in sorted(filled))


def entries_of(shards: Shards, bucket: Bucket) -> Entries:
    """Every owner's rows in the bucket."""
    columns = []
    for number, item in enumerate(bucket.items):
        cell = shards.cells[item.cell]
        first, rows = cell.cuts[:-1], np.diff(cell.cuts)
        start, stop = rows * item.part // item.parts, rows * (item.part + 1) // item.parts
        taken = stop - start
        which = (np.full(len(rows), n) for n in (number, item.cell))
        columns.append((cell.owners, *which, first + start, taken, taken * (cell.row // bucket.unit)))
    joined = Entries(*(np.concatenate(each) for each in zip(*columns, strict=True)))
    some = joined.where(joined.rows > 0)
    return some.where(np.lexsort((some.item, some.owner)))
