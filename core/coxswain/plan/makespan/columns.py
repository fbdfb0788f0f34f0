"""Places few long rings on columns: runs of whole nodes, as wide as their sequences need, that end together.

Nested blocks are of doubled sizes, so some thirty rings leave much of them idle. Rings over any number of nodes take nearly
the same work, so a column may be as wide as the longest of its sequences needs to end in time, and shorter ones fill what
is left of it. Columns are filled one after another, each by the least waste of its width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

from coxswain.cost.model import Floats
from coxswain.plan.degrees import ring_seconds
from coxswain.plan.makespan.line import Line, line_of
from coxswain.plan.makespan.loads import Ints, Seats
from coxswain.plan.makespan.rings import Rings, RingSchedule
from coxswain.plan.problem import Problem

WIDER = 4  # nodes more than the longest sequence of a column needs that are tried
TOGETHER = 3  # sequences at most that fill a column at once
MOST, A_NODE = 48, 2.5  # rings of a step, and for each node: with more of them, blocks are level


@dataclass(frozen=True, slots=True)
class Column:
    """Neighbouring nodes, so many, and the sequences that they run one after another."""

    nodes: int
    sequences: list[int]
    seconds: list[float]
    waste: float  # what it takes until its end, over what its sequences take at the least


def are_few(problem: Problem, rings: int) -> bool:
    return 0 < rings <= min(MOST, A_NODE * (int(problem.nodes.max()) + 1))


def place_columns(problem: Problem, long: Ints, short: Ints, seconds: float) -> RingSchedule | None:
    """Rings that all end within so many seconds and leave room for packs; None where there are too few nodes for that."""
    line = line_of(problem)
    if (line.counts < line.size).any():
        return None
    table, speeds = _table(problem, long, line), problem.speeds[line.replicas].reshape(-1, line.size)
    slowest, least = speeds.min(axis=1), (table * np.arange(1, len(table) + 1)[:, None]).min(axis=0) * line.size
    packs = float(problem.cost.work_seconds(problem.lengths[short]).sum())
    left, nodes, rings, free = list(range(long.size)), 0, Rings(line), np.zeros(line.replicas.size)
    room = seconds * float(speeds.sum()) - packs  # replica-seconds
    while left:
        if float(least[left].sum()) > min(room, seconds * float(speeds[nodes:].sum())):
            return None
        rates = np.minimum.accumulate(slowest[nodes:])
        column = _best(table[: rates.size] / rates[:, None], left, seconds)
        if column is None:
            return None
        places, begin = np.arange(nodes * line.size, (nodes + column.nodes) * line.size), 0.0
        for k, took in zip(column.sequences, column.seconds, strict=True):
            rings.add(int(long[k]), Seats(line.turned(places), np.full(places.size, begin), begin))
            begin += took
        free[places] = begin
        room -= begin * float(speeds[nodes : nodes + column.nodes].sum())
        nodes += column.nodes
        left = [k for k in left if k not in column.sequences]
    return rings.schedule(free[line.places])


def _table(problem: Problem, long: Ints, line: Line) -> Floats:
    """Seconds at speed 1 of each ring by the nodes of its column, from 1; inf: does not fit."""
    degrees = np.arange(1, line.counts.size + 1)[:, None] * line.size
    lengths = np.broadcast_to(problem.lengths[long], (degrees.size, long.size))
    fits = (degrees >= 2) & (degrees <= problem.max_degree) & (lengths <= degrees * problem.capacity)
    found: Floats = np.where(fits, ring_seconds(problem, lengths, np.maximum(2, degrees)), np.inf)
    return found


def _best(table: Floats, left: list[int], seconds: float) -> Column | None:
    """The column of the longest sequence that is left with the least waste for its work. `table`: by its nodes, from 1."""
    enough = np.flatnonzero(table[:, left[0]] <= seconds)[:WIDER]
    columns = [_filled(table, int(row), left, seconds) for row in enough.tolist()]
    return min(columns, key=lambda column: column.waste, default=None)


def _filled(table: Floats, row: int, left: list[int], seconds: float) -> Column:
    chosen, room = left[:1], seconds - float(table[row, left[0]])
    while more := _fill(table[row], np.array([k for k in left if k not in chosen], dtype=np.int64), room):
        chosen = chosen + more
        room -= float(table[row, more].sum())
    least = float((table[:, chosen] * np.arange(1, len(table) + 1)[:, None]).min(axis=0).sum())
    return Column(row + 1, chosen, table[row, chosen].tolist(), (row + 1) * seconds / least)


def _fill(took: Floats, rest: Ints, room: float) -> list[int]:
    """Up to three sequences that take most of the room."""
    best, chosen = 0.0, list[int]()
    for count in range(1, min(TOGETHER, rest.size) + 1):
        sets = rest[_sets(rest.size, count)]
        sums = took[sets].sum(axis=1)
        sums[sums > room] = 0.0
        at = int(sums.argmax())
        if sums[at] > best:
            best, chosen = float(sums[at]), sets[at].tolist()
    return chosen


@lru_cache(maxsize=256)
def _sets(items: int, count: int) -> Ints:
    """All sets of so many of these items, a row each."""
    return np.array(list(combinations(range(items), count)), dtype=np.int64).reshape(-1, count)
