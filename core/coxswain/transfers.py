"""Transfer lists: what must move when holders change, by intersection of the boxes that are held with those that are needed.

A device that already holds a part of what it needs receives only the rest. Where several devices hold a part, the least
loaded one of the receiver's node sends it, else the least loaded one of all. The list follows from its inputs alone, so
every process finds the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coxswain.boxes import Box
from coxswain.holdings import Holding
from coxswain.intervals import Ints, numbers_in

Seconds = NDArray[np.float64]
STORE = -1  # sender of what no device holds


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes of devices, a row each: elements [first, last) x [left, right) of the tensor `name`, one column for a vector.

    `name` is a number of `names`. Boxes of one device do not overlap.
    """

    names: tuple[str, ...]
    name: Ints
    device: Ints
    first: Ints
    last: Ints
    left: Ints
    right: Ints

    @property
    def elements(self) -> Ints:
        return (self.last - self.first) * (self.right - self.left)

    def only(self, rows: NDArray[np.bool_] | Ints) -> Boxes:
        columns = (self.name, self.device, self.first, self.last, self.left, self.right)
        return Boxes(self.names, *(column[rows] for column in columns))

    def on(self, pairs: Iterable[tuple[int, int]]) -> Boxes:
        """On each device of the pairs (device, other) the boxes that the other one has here."""
        device, other = np.asarray(list(pairs), dtype=np.int64).reshape(-1, 2).T
        order = np.argsort(self.device, kind="stable")
        held = self.device[order]
        begin = np.searchsorted(held, other)
        counts = np.searchsorted(held, other, side="right") - begin
        return replace(self.only(order[numbers_in(begin, counts)]), device=np.repeat(device, counts))


@dataclass(frozen=True, slots=True)
class Transfers:
    """What moves, a row each, in the order of names and boxes."""

    name: Ints
    first: Ints
    last: Ints
    left: Ints
    right: Ints
    sender: Ints
    receiver: Ints

    @property
    def elements(self) -> Ints:
        return (self.last - self.first) * (self.right - self.left)

    def only(self, rows: NDArray[np.bool_]) -> Transfers:
        return Transfers(*(getattr(self, field.name)[rows] for field in fields(self)))


def boxes_of(names: Sequence[str], held: Iterable[tuple[int, Iterable[Box]]]) -> Boxes:
    """From each device's boxes, of one or two dimensions, of the tensors `names`."""
    number = {name: i for i, name in enumerate(names)}
    rows = [(number[b.name], device, *sides(b)) for device, boxes in held for b in boxes]
    columns = np.asarray(rows, dtype=np.int64).reshape(-1, 6).T
    return Boxes(tuple(names), *columns)


def held_boxes(names: Sequence[str], devices: Sequence[int], holdings: Iterable[tuple[Holding, ...]]) -> Boxes:
    """From the holdings of ranks, each on a device. Ranks with the same tuple of holdings are looked at once."""
    known: dict[int, Ints] = {}
    kept = list(holdings)  # an identity stays with its tuple
    parts = []
    for device, mine in zip(devices, kept, strict=True):
        if id(mine) not in known:
            found = boxes_of(names, [(device, (h.box for h in mine))])
            known[id(mine)] = np.stack([found.name, found.device, found.first, found.last, found.left, found.right])
        rows = known[id(mine)].copy()
        rows[1] = device
        parts.append(rows)
    return Boxes(tuple(names), *_joined(parts, 6))


def _joined(parts: Sequence[Ints], columns: int) -> Ints:
    """Tables of so many columns, one behind the other; of none an empty one."""
    return np.concatenate([np.zeros((columns, 0), dtype=np.int64), *parts], axis=1)


def _named(name: int, rows: Ints) -> Ints:
    return np.concatenate([np.full((1, rows.shape[1]), name), rows])


def sides(box: Box) -> tuple[int, int, int, int]:
    """Its first row and the one behind its last, and so its columns: one of a vector."""
    (top, left), (rows, columns) = (*box.offset, 0)[:2], (*box.shape, 1)[:2]
    return top, top + rows, left, left + columns


@dataclass(frozen=True, slots=True)
class Links:
    """`node` of each device; bytes a second of a device inside its node and between nodes."""

    node: Ints
    inside: float
    between: Seconds  # of each device

    def seconds(self, size: float | Ints, sender: Ints, receiver: Ints) -> Seconds:
        """How long a message keeps the slower of its two links."""
        slower = np.minimum(self.between[sender], self.between[receiver])
        near = self.node[sender] == self.node[receiver]
        found: Seconds = size / np.where(near, self.inside, slower)
        return found


def transfers(
    have: Boxes, need: Boxes, links: Links, element: int, busy: Seconds | None = None, *, stored: bool = False
) -> Transfers:
    """What moves; `element` bytes each. `links`: of every device that a box names. `busy`: seconds that each device sends
    already; grows by what is added.

    What no device holds comes from the checkpoint (sender STORE) if it is `stored`; else raises ValueError.
    """
    load = np.zeros(links.node.size) if busy is None else busy
    known: dict[tuple[bytes, bytes], list[Column]] = {}  # layers that go from one stage to another are alike
    parts = []
    for name, (mine, theirs) in enumerate(zip(_by_name(need), _by_name(have), strict=True)):
        key = mine.tobytes(), theirs.tobytes()
        if key[0] == key[1]:
            continue  # as of the layers that stay where they are
        if key not in known:
            known[key] = list(_columns(theirs, mine, links.node.size, None if stored else need.names[name]))
        parts += [_named(name, _column_moves(column, links, element, load)) for column in known[key]]
    return Transfers(*_joined(parts, 7))


def _by_name(boxes: Boxes) -> list[Ints]:
    """Rows (device, first, last, left, right) of each name."""
    order = np.argsort(boxes.name, kind="stable")  # so what stays as it is is equal
    table = np.stack([boxes.device, boxes.first, boxes.last, boxes.left, boxes.right])[:, order]
    return np.split(table, np.searchsorted(boxes.name[order], np.arange(1, len(boxes.names))), axis=1)


@dataclass(frozen=True, slots=True)
class Column:
    """Columns [left, right) of a tensor, cut into rows at `edges`: which device holds and which one lacks which cell."""

    left: int
    right: int
    edges: Ints
    held: Ints  # (cell, device), by cell
    lacking: Ints  # (cell, device), by cell


def _columns(have: Ints, need: Ints, devices: int, named: str | None) -> Iterator[Column]:
    """Of a tensor of which a device lacks something. Raises ValueError, if it is `named`, where no device holds a cell."""
    for left, right in pairwise(np.unique(np.concatenate([have[3:].ravel(), need[3:].ravel()])).tolist()):
        old, new = (rows[:, (rows[3] <= left) & (rows[4] >= right)] for rows in (have, need))
        edges = np.unique(np.concatenate([old[1:3].ravel(), new[1:3].ravel()]))
        held, wanted = _expanded(old, edges), _expanded(new, edges)
        missing = wanted[0][~_are_in(held[0], wanted[0])]
        if missing.size and named:
            rows = f"rows {edges[missing[0]]} to {edges[missing[0] + 1]}"
            raise ValueError(f"{named}: no device holds {rows}, columns {left} to {right}")
        lacking = wanted[:, ~_are_in(held[0] * devices + held[1], wanted[0] * devices + wanted[1])]
        if lacking.size:
            yield Column(left, right, edges, held, lacking)


def _are_in(ordered: Ints, values: Ints) -> NDArray[np.bool_]:
    """Which values are among the ordered ones."""
    places = np.searchsorted(ordered, values)
    found: NDArray[np.bool_] = np.append(ordered, -1)[places] == values  # no value is negative
    return found


def _expanded(rows: Ints, edges: Ints) -> Ints:
    """(cell, device) of every cell in every box, by cell."""
    start, stop = np.searchsorted(edges, rows[1]), np.searchsorted(edges, rows[2])
    pairs = np.stack([numbers_in(start, stop - start), np.repeat(rows[0], stop - start)])
    found: Ints = pairs[:, np.lexsort((pairs[1], pairs[0]))]
    return found


def shared(held: Boxes) -> Boxes:
    """Owners of optimizer state: all holders of a part own equal rows of it."""
    known: dict[bytes, Ints] = {}  # layers of one stage are alike
    parts = []
    for name, rows in enumerate(_by_name(held)):
        key = rows.tobytes()
        if key not in known:
            known[key] = _owned(rows)
        parts.append(_named(name, known[key]))
    return Boxes(held.names, *_joined(parts, 6))


def _owned(rows: Ints) -> Ints:
    """Rows (device, first, last, left, right) of one tensor's owners, from those of its holders."""
    parts = []
    for left, right in pairwise(np.unique(rows[3:].ravel()).tolist()):
        mine = rows[:, (rows[3] <= left) & (rows[4] >= right)]
        edges = np.unique(mine[1:3].ravel())
        cell, device = _expanded(mine, edges)
        count, turn = np.bincount(cell)[cell], _turns(cell)
        start, height = edges[cell], (edges[1:] - edges[:-1])[cell]
        first, last = start + height * turn // count, start + height * (turn + 1) // count
        sides = np.full_like(cell, left), np.full_like(cell, right)
        parts.append(np.stack([device, first, last, *sides])[:, last > first])
    return _joined(parts, 5)


def _column_moves(column: Column, links: Links, element: int, load: Seconds) -> Ints:
    """Rows of Transfers but the name. Cells with one holder have one sender; the others choose theirs cell by cell."""
    cell, receiver = column.lacking
    size = (column.edges[cell + 1] - column.edges[cell]) * (column.right - column.left) * element
    begin, end = np.searchsorted(column.held[0], cell), np.searchsorted(column.held[0], cell, side="right")
    sender = np.full_like(receiver, STORE)
    several, single = end - begin > 1, end - begin == 1
    sender[single] = column.held[1][begin[single]]
    np.add.at(load, sender[single], links.seconds(size[single], sender[single], receiver[single]))
    for number in np.unique(cell[several]):
        at = np.flatnonzero(cell == number)
        sender[at] = _chosen(column.held[1][begin[at[0]] : end[at[0]]], receiver[at], links, load)
        np.add.at(load, sender[at], links.seconds(size[at], sender[at], receiver[at]))
    sides = np.full_like(cell, column.left), np.full_like(cell, column.right)
    rows = column.edges[cell], column.edges[cell + 1]
    return np.stack([*rows, *sides, sender, receiver])


def _chosen(holders: Ints, receivers: Ints, links: Links, load: Seconds) -> Ints:
    """A sender for each receiver: of its own node where there is one, the least loaded ones in turn."""
    far = holders[np.lexsort((holders, load[holders]))]
    near = far[np.argsort(links.node[far], kind="stable")]
    nodes, wanted = links.node[near], links.node[receivers]
    begin, end = np.searchsorted(nodes, wanted), np.searchsorted(nodes, wanted, side="right")
    found = np.empty_like(receivers)
    inside = end > begin
    turn = _turns(wanted[inside])
    found[inside] = near[begin[inside] + turn % (end - begin)[inside]]
    found[~inside] = far[np.arange((~inside).sum()) % far.size]
    return found


def _turns(values: Ints) -> Ints:
    """How many equal values stand before each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    turns = np.empty_like(values)
    turns[order] = np.arange(values.size) - np.searchsorted(ordered, ordered)
    return turns


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes, and seconds that the busiest device needs.

    `bound_seconds`: no list is faster, since each device must receive what it lacks, from its own node where that has it.
    """

    bytes: int
    stored_bytes: int  # of them from the checkpoint: no time is counted for these
    least_bytes: int
    most_sent: int
    most_received: int
    seconds: float
    bound_seconds: float


def traffic(moves: Sequence[tuple[Transfers, Boxes, Boxes, int]], links: Links) -> Traffic:
    """Of lists that move together, each with the boxes held and needed and the bytes of an element."""
    devices = links.node.size
    sent, received = np.zeros(devices, dtype=np.int64), np.zeros(devices, dtype=np.int64)
    out, into, alone, least, stored = np.zeros(devices), np.zeros(devices), np.zeros(devices), 0, 0
    for every, have, need, element in moves:
        list_ = every.only(every.sender != STORE)
        stored += int(every.elements.sum() - list_.elements.sum()) * element
        size = list_.elements * element
        np.add.at(sent, list_.sender, size)
        np.add.at(received, list_.receiver, size)
        seconds = links.seconds(size, list_.sender, list_.receiver)
        np.add.at(out, list_.sender, seconds)
        np.add.at(into, list_.receiver, seconds)
        near = links.node[list_.sender] == links.node[list_.receiver]
        np.add.at(alone, list_.receiver, size / np.where(near, links.inside, links.between[list_.receiver]))
        least += least_bytes(have, need, element)
    busiest = max(out.max(), into.max())
    most = int(sent.max()), int(received.max())
    return Traffic(int(sent.sum()) + stored, stored, least, *most, float(busiest), float(alone.max()))


def least_bytes(have: Boxes, need: Boxes, element: int) -> int:
    """Of what devices need and do not hold: each box that is needed, less what it has in common with boxes held there."""
    tensors = len(need.names)
    key, wanted = have.device * tensors + have.name, need.device * tensors + need.name
    order = np.argsort(key)
    begin, end = np.searchsorted(key[order], wanted), np.searchsorted(key[order], wanted, side="right")
    mine = np.repeat(np.arange(wanted.size), end - begin)
    theirs = order[numbers_in(begin, end - begin)]
    height = np.minimum(need.last[mine], have.last[theirs]) - np.maximum(need.first[mine], have.first[theirs])
    width = np.minimum(need.right[mine], have.right[theirs]) - np.maximum(need.left[mine], have.left[theirs])
    return int(need.elements.sum() - (np.maximum(height, 0) * np.maximum(width, 0)).sum()) * element
