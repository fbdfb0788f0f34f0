"""Which rows of which parameter each rank owns (ZeRO-1), for any layout, in the fixed order of every packed buffer.

Each parameter is cut at the boundaries of all its holders' boxes. A cell is then wholly inside or outside each held box,
and its holders share its rows. So an owner's box is always inside a box that it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from math import gcd, prod
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from coxswain.boxes import Box, intersect
from coxswain.fair_shares import balance
from coxswain.holdings import Holding
from coxswain.transfers import Boxes, sides

Numbers = npt.NDArray[np.int64]
Group = int  # number of a group of ranks with equal holdings


@dataclass(frozen=True, slots=True)
class Cell:
    """A box inside or outside each held box. `owners[i]` (a rank) has its rows [cuts[i], cuts[i + 1])."""

    box: Box
    unit: int  # elements: in every holder's memory the cell is made of whole, aligned runs of so many
    holders: tuple[Group, ...]
    counting: tuple[Group, ...]  # those whose gradients go into the sum
    owners: Numbers
    cuts: Numbers
    times: int = 1  # how many parameters it stands for, where only their numbers count

    @property
    def row(self) -> int:
        """Elements of one row."""
        return prod(self.box.shape[1:])

    def rows_of(self, owner: int) -> tuple[int, int]:
        """The owner's rows [start, stop), counted from the cell's first; empty when it has none."""
        place = int(np.searchsorted(self.owners, owner))
        if place == len(self.owners) or self.owners[place] != owner:
            return 0, 0
        return int(self.cuts[place]), int(self.cuts[place + 1])


@dataclass(frozen=True)
class Shards:
    """The cells of all parameters, decayed ones (two and more dimensions) first, else in the model's order."""

    cells: tuple[Cell, ...]
    group_of: Numbers  # by rank
    holdings: tuple[tuple[Holding, ...], ...]  # by group

    @property
    def owners(self) -> int:
        return len(self.group_of)

    def boxes(self, owner: int) -> tuple[Box, ...]:
        """The owner's boxes, in the order of its packed buffer."""
        rows = ((cell.box, *cell.rows_of(owner)) for cell in self.cells)
        return tuple(_rows(box, start, stop) for box, start, stop in rows if stop > start)

    def table(self, names: Sequence[str]) -> Boxes:
        """The boxes of all owners, as those of devices of the same numbers. `names`: of all parameters."""
        number = {name: place for place, name in enumerate(names)}
        counts = [len(cell.owners) for cell in self.cells]
        whole = np.array([(number[cell.box.name], *sides(cell.box)) for cell in self.cells])
        name, top, _, left, right = np.repeat(whole, counts, axis=0).T
        owners, start, stop = (
            np.concatenate(each)
            for each in zip(*((c.owners, c.cuts[:-1], c.cuts[1:]) for c in self.cells), strict=True)
        )
        return Boxes(tuple(names), name, owners, top + start, top + stop, left, right).only(stop > start)

    def sizes(self) -> list[int]:
        """Elements by owner."""
        return [int(size) for size in self._sizes]

    def holds(self, counting: bool) -> npt.NDArray[np.bool_]:
        """[group, cell]: whether ranks of the group hold the cell, and, with `counting`, send its gradient."""
        table = np.zeros((len(self.holdings), len(self.cells)), dtype=np.bool_)
        for number, cell in enumerate(self.cells):
            table[list(cell.counting if counting else cell.holders), number] = True
        return table

    def sole(self, rank: int) -> dict[str, int]:
        """The parameters that only this rank has a part of, and where each begins in its packed buffer."""
        found, start = {}, 0
        for number, cell in enumerate(self.cells):
            first, stop = cell.rows_of(rank)
            if stop > first and not self.travels[number]:
                found[cell.box.name] = start
            start += (stop - first) * cell.row
        return found

    @cached_property
    def travels(self) -> list[bool]:
        """By cell: whether several ranks hold it."""
        members = np.bincount(self.group_of)
        held = [{holding.box for holding in holdings} for holdings in self.holdings]
        return [sum(members[g] for g in c.holders) > 1 or c.box not in held[c.holders[0]] for c in self.cells]

    @cached_property
    def _sizes(self) -> Numbers:
        return _loads(self.cells, self.owners)


def nothing_whole(_: str) -> bool:
    return False


def shards(
    holdings: Iterable[tuple[Holding, ...]],
    whole: Callable[[str], bool] = nothing_whole,
    times: Mapping[str, int] = MappingProxyType({}),
) -> Shards:
    """Owners for the holdings of all ranks, by rank. A cell of a parameter that must stay `whole` has one owner.

    `times`: how many parameters, held alike, one stands for, if not for itself alone: it counts as often in what ranks own.

    Raises ValueError when no holder's gradient of a cell counts.
    """
    group_of, groups = _groups(holdings)
    found = _cells(groups, times)
    found.sort(key=lambda cell: len(cell.box.shape) < 2)  # stable
    ranks = [np.flatnonzero(group_of == group) for group in range(len(groups))]
    shared = [cell for cell in found if not whole(cell.box.name)]
    members = [len(each) for each in ranks]
    weights = balance([(cell.box.elements * cell.times, cell.holders) for cell in shared], members)
    owned = _shared_out(shared, ranks, weights)
    if len(owned) < len(found):
        _give_whole([cell for cell in found if id(cell) not in owned], ranks, owned)
    return Shards(tuple(owned[id(cell)] for cell in found), group_of, groups)


def staying(before: Shards, after: Shards, former: Sequence[int]) -> list[int]:
    """By rank of `after`, elements that it owned in the same rows of the same cell. `former`: its rank in `before`; -1: none."""
    old, ranks = {cell.box: cell for cell in before.cells}, np.array(former, dtype=np.int64)
    total, known = np.zeros(len(ranks), dtype=np.int64), dict[tuple[int, int], Numbers]()
    for cell in after.cells:
        if (was := old.get(cell.box)) is not None:
            key = id(was.cuts), id(cell.cuts)
            if key not in known:
                known[key] = _same_rows(was, cell, ranks)
            total[cell.owners] += known[key] * (cell.row * cell.times)
    return [int(elements) for elements in total]


def _same_rows(was: Cell, now: Cell, former: Numbers) -> Numbers:
    """By owner of `now`, how many rows it has, where it had just these; else 0."""
    place = np.searchsorted(was.owners, former[now.owners]).clip(max=len(was.owners) - 1)
    same = was.owners[place] == former[now.owners]
    same &= (was.cuts[place] == now.cuts[:-1]) & (was.cuts[place + 1] == now.cuts[1:])
    return np.where(same, np.diff(now.cuts), 0)


def _groups(holdings: Iterable[tuple[Holding, ...]]) -> tuple[Numbers, tuple[tuple[Holding, ...], ...]]:
    """By rank the number of its group, and the holdings of each group."""
    ranks = list(holdings)
    same = {id(held): held for held in ranks}  # few, so that equal ones are compared once
    numbers: dict[tuple[Holding, ...], Group] = {}
    of_id = {each: numbers.setdefault(held, len(numbers)) for each, held in same.items()}
    return np.array([of_id[id(held)] for held in ranks], dtype=np.int64), tuple(numbers)


def _held(groups: Sequence[tuple[Holding, ...]]) -> dict[str, list[tuple[Group, Holding]]]:
    """The holders of each parameter and what they hold, in the model's order: a replica's ranks come by stage."""
    found: dict[str, list[tuple[Group, Holding]]] = {}
    for group, holdings in enumerate(groups):
        for holding in holdings:
            found.setdefault(holding.box.name, []).append((group, holding))
    return found


def _cells(groups: Sequence[tuple[Holding, ...]], times: Mapping[str, int]) -> list[Cell]:
    """Those of all parameters, without owners. Boxes that are alike, as in all layers, are cut once."""
    cuts, known, found = dict[object, list[Cell]](), dict[object, list[Cell]](), list[Cell]()
    for name, held in _held(groups).items():
        holders, boxes = (
            tuple(group for group, _ in held),
            tuple((h.box.offset, h.box.shape, h.counts) for _, h in held),
        )
        if boxes not in cuts:
            cuts[boxes] = _cut(name, [holding for _, holding in held])
        if (key := (holders, boxes)) not in known:
            known[key] = [_held_by(cell, holders) for cell in cuts[boxes]]
        found += [_stand_in(cell, name, times.get(name, 1)) for cell in known[key]]
    return found


def _cut(name: str, held: Sequence[Holding]) -> list[Cell]:
    """The cells of a parameter, without owners. Their holders are places in `held`."""
    dimensions = range(len(held[0].box.shape))
    edges = [sorted({e for h in held for e in (h.box.offset[d], h.box.offset[d] + h.box.shape[d])}) for d in dimensions]
    unit, none, alike = _unit(edges), np.zeros(0, dtype=np.int64), dict[Box, list[int]]()
    for place, holding in enumerate(held):
        alike.setdefault(holding.box, []).append(place)
    cells = []
    for intervals in product(*(pairwise(edge) for edge in edges)):
        box = Box(name, tuple(a for a, _ in intervals), tuple(b - a for a, b in intervals))
        inside = sorted(place for b, places in alike.items() if intersect(b, box) is not None for place in places)
        if inside:
            counting = tuple(place for place in inside if held[place].counts)
            if not counting:
                raise ValueError(f"{box}: no holder's gradient counts")
            cells.append(Cell(box, unit, tuple(inside), counting, none, none))
    return cells


def _unit(edges: Sequence[Sequence[int]]) -> int:
    """Elements of the runs that make up every cell: whole rows, or parts of them where columns are cut."""
    last = max((d for d, edge in enumerate(edges) if len(edge) > 2), default=0)
    tail = prod(edge[-1] - edge[0] for edge in edges[last + 1 :])
    return tail if last == 0 else tail * gcd(*(e - edges[last][0] for e in edges[last]))


def _shared_out(
    cells: Iterable[Cell], ranks: Sequence[Numbers], weights: Mapping[tuple[Group, ...], Sequence[int]]
) -> dict[int, Cell]:
    """Cells with owners, by identity. Those of as many rows that the same groups hold are shared alike."""
    known: dict[tuple[int, tuple[Group, ...]], tuple[Numbers, Numbers]] = {}
    found = {}
    for cell in cells:
        key = cell.box.shape[0], cell.holders
        if key not in known:
            known[key] = _share(*key, ranks, weights[cell.holders])
        found[id(cell)] = _owned(cell, *known[key])
    return found


def _share(
    rows: int, holders: Sequence[Group], ranks: Sequence[Numbers], weights: Sequence[int]
) -> tuple[Numbers, Numbers]:
    """Gives so many rows to the holders in rank order: owners and cuts. `weights`: of a rank of each holding group."""
    owners = np.concatenate([ranks[group] for group in holders])
    each = np.concatenate([np.full(len(ranks[g]), w) for g, w in zip(holders, weights, strict=True)])
    order = np.argsort(owners)
    bounds = np.concatenate([[0], np.cumsum(each[order])])
    return owners[order], rows * bounds // bounds[-1]


def _give_whole(cells: Sequence[Cell], ranks: Sequence[Numbers], owned: dict[int, Cell]) -> None:
    """Gives each cell, the largest first, to the holder with the least so far."""
    loads = _loads(owned.values(), sum(len(each) for each in ranks))
    sets = {holders: np.sort(np.concatenate([ranks[g] for g in holders])) for holders in {c.holders for c in cells}}
    ways = dict[tuple[int, int], tuple[Numbers, Numbers]]()  # shared, so that equal ones are compared once
    for cell in sorted(cells, key=lambda cell: -cell.box.elements):
        holders, rows = sets[cell.holders], cell.box.shape[0]
        owner = int(holders[loads[holders].argmin()])
        loads[owner] += cell.box.elements
        way = ways.setdefault((owner, rows), (np.array([owner]), np.array([0, rows])))
        owned[id(cell)] = _owned(cell, *way)


def _loads(cells: Iterable[Cell], ranks: int) -> Numbers:
    """Elements that each rank owns of these cells."""
    loads, known = np.zeros(ranks, dtype=np.int64), dict[int, list[Cell]]()
    for cell in cells:
        known.setdefault(id(cell.cuts), []).append(cell)
    for alike in known.values():
        loads[alike[0].owners] += np.diff(alike[0].cuts) * sum(cell.row * cell.times for cell in alike)
    return loads


def _owned(cell: Cell, owners: Numbers, cuts: Numbers) -> Cell:
    return Cell(cell.box, cell.unit, cell.holders, cell.counting, owners, cuts, cell.times)


def _held_by(cell: Cell, groups: Sequence[Group]) -> Cell:
    """The cell with the groups at the places that it has as holders."""
    holders, counting = (tuple(groups[place] for place in each) for each in (cell.holders, cell.counting))
    return Cell(cell.box, cell.unit, holders, counting, cell.owners, cell.cuts)


def _stand_in(cell: Cell, name: str, times: int) -> Cell:
    """The cell of another parameter that is held alike."""
    box = Box(name, cell.box.offset, cell.box.shape)
    return Cell(box, cell.unit, cell.holders, cell.counting, cell.owners, cell.cuts, times)


def _rows(box: Box, start: int, stop: int) -> Box:
    return Box(box.name, (box.offset[0] + start, *box.offset[1:]), (stop - start, *box.shape[1:]))
