"""Keeps the replicas' loads along the line and finds the neighbours that are free first for a ring.

A slow replica makes the whole ring slow. Replicas are therefore compared by load plus handicap: how
much later a ring would end on them than on a replica of the usual speed. Equal speeds have no
handicap, and nodes stay sorted as they fill.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import fsum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import Floats
from coxswain.plan.makespan.line import line_of
from coxswain.plan.problem import Problem

Ints = NDArray[np.int64]
STEP = 8  # whole nodes: beyond so many, widths grow by an eighth
WHOLE = 0  # in place of a degree: all replicas of a node
ONE_BY_ONE = 4  # nodes: more are looked at together


class Starts(NamedTuple):
    """The earliest start of a ring of each degree: within a node, and of whole nodes."""

    degrees: Ints
    seconds: Floats


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs of just so many neighbouring nodes that they have `degree` replicas; the k-th begins at node k."""

    degree: int
    stops: Ints
    width: int  # nodes of each run; 0: they differ

    def free(self, tables: list[Floats]) -> Floats:
        """Returns when all replicas of each run are free. `tables`: see `_tables`."""
        count = self.stops.size
        if self.width:
            level = self.width.bit_length() - 1
            shift = self.width - (1 << level)
            highest: Floats = np.maximum(tables[level][:count], tables[level][shift : shift + count])
            return highest
        edges = np.stack([np.arange(count), self.stops], axis=1)
        of_runs: Floats = np.maximum.reduceat(np.append(tables[0], np.inf), edges.ravel())[::2]
        return of_runs


def _runs_of(behind: Ints, degree: int) -> Runs:
    """`behind`: replicas before each node, and of all."""
    stops = np.searchsorted(behind, behind[:-1] + degree)
    stops = stops[stops < behind.size]
    widths = np.unique(stops - np.arange(stops.size))
    return Runs(degree, stops, int(widths[0]) if widths.size == 1 else 0)


def _tables(whole: Floats, most: int) -> list[Floats]:
    """Returns the greatest of 1, 2, 4, ... neighbours from each node on, up to `most`."""
    tables, width = [whole], 1
    while 2 * width <= most:
        tables.append(np.maximum(tables[-1][:-width], tables[-1][width:]))
        width *= 2
    return tables


class Seats(NamedTuple):
    """The places of a ring on the line, in ring order, and when each is free."""

    places: Ints
    free: Floats
    start: float  # when all are free


class ReplicaLoads:
    """Loads of replicas of equal speed, one row a node; nodes smaller than the largest are padded with inf."""

    def __init__(self, problem: Problem) -> None:
        self.line, self.most = line_of(problem), problem.max_degree
        self.size, self.counts = self.line.size, self.line.counts
        self.behind = np.concatenate([[0], np.cumsum(self.counts)])  # replicas before each node
        self.runs = dict[int, Runs]()
        self.usual = float(np.median(problem.speeds))
        self.loads = np.full(self.line.replicas.size, np.inf)
        self.loads[self.line.places] = 0.0
        self.rows = self.loads.reshape(self.counts.size, self.size)
        self.first, self.stale = dict[int, Floats](), dict[int, set[int]]()

    def choose(self, degree: int, seconds: float) -> Seats:
        """Chooses members for a ring of so many seconds at speed 1: neighbours in one node, else whole nodes.

        These may be more than asked for, but never more than the maximum degree.
        """
        if degree <= self.size:
            return self._inside(int(self.first_of(degree).argmin()), self.rows, degree)
        return self._nodes(degree, self.first_of(WHOLE))

    def first_of(self, degree: int) -> Floats:
        """When the first window of so many neighbours is free in each node; WHOLE: all of the node.

        Nodes that rings have taken since a degree was asked for are looked at when it is asked for again.
        """
        if degree not in self.first:
            self.first[degree], self.stale[degree] = self._free(self.rows, self.counts, degree), set()
        found, nodes = self.first[degree], self.stale[degree]
        if len(nodes) > ONE_BY_ONE or (nodes and degree == WHOLE):
            at = list(nodes)
            found[at] = self._free(self.rows[at], self.counts[at], degree)
        else:
            for node in nodes:
                row = self.rows[node].tolist()
                found[node] = min([max(row[k : k + degree]) for k in range(self.size - degree + 1)])
        nodes.clear()
        return found

    @staticmethod
    def _free(rows: Floats, counts: Ints, degree: int) -> Floats:
        return _whole(rows, counts) if degree == WHOLE else _first_at(rows, degree)

    def _inside(self, node: int, rows: Floats, degree: int) -> Seats:
        return self._seats(self.line.window(node * self.size + _window(rows[node].tolist(), degree), degree))

    def _nodes(self, degree: int, whole: Floats) -> Seats:
        runs = self._runs(degree)
        at = int(runs.free(_tables(whole, runs.width)).argmin())
        nodes = np.arange(at, runs.stops[at])
        places: Ints = (nodes[:, None] * self.size + np.arange(self.size)).ravel()
        places = places[np.repeat(self.counts[nodes], self.size) > places % self.size]
        return self._seats(self.line.turned(self._cut(places, degree)))

    def _seats(self, places: Ints) -> Seats:
        free = self.loads[places]
        return Seats(places, free, float(np.maximum.reduce(free)))

    def _cut(self, places: Ints, degree: int) -> Ints:
        """Whole nodes leave no holes, and are no slower."""
        return places[: self.most]

    def _runs(self, degree: int) -> Runs:
        if degree not in self.runs:
            self.runs[degree] = _runs_of(self.behind, degree)
        return self.runs[degree]

    @cached_property
    def _widths(self) -> list[Runs]:
        """Runs of two nodes, three, and so on, up to the largest degree."""
        count, all_, degrees = 2, int(self.behind[-1]), [self.size]
        while count <= self.counts.size and (degree := min(self.most, count * self.size, all_)) > degrees[-1]:
            degrees.append(degree)
            count += max(1, count // STEP)
        return [self._runs(degree) for degree in degrees[1:]]

    def of(self, members: Ints) -> Floats:
        """Returns when these replicas are free."""
        return self.loads[self.line.places[members]]

    def occupy(self, places: Ints, until: float) -> None:
        self.loads[places] = until
        one = places.size <= self.size
        nodes = [int(places[0]) // self.size] if one else np.unique(places // self.size).tolist()
        for stale in self.stale.values():
            stale.update(nodes)

    def end(self, seats: Seats, seconds: float) -> float:
        """Returns when a ring of so many seconds at speed 1 ends on these members."""
        return seats.start + seconds / self.usual

    def first_free(self) -> float:
        return float(np.minimum.reduce(self.loads))

    def starts(self, seconds: float) -> Iterator[Starts]:
        """The earliest starts of rings of 1, 2, ... members of a node, then of more and more whole nodes."""
        yield Starts(np.arange(1, self.size + 1), _first(self.rows))
        if self._widths:
            yield self._of_nodes(self.first_of(WHOLE))

    def _of_nodes(self, whole: Floats) -> Starts:
        tables = _tables(whole, whole.size)
        if self._edges is None:
            seconds = np.array([float(runs.free(tables).min()) for runs in self._widths])
        else:
            left, right, begins = self._edges
            flat = np.concatenate(tables)
            seconds = np.minimum.reduceat(np.maximum(flat[left], flat[right]), begins)
        return Starts(self._degrees, seconds)

    @cached_property
    def _degrees(self) -> Ints:
        return np.array([runs.degree for runs in self._widths])

    @cached_property
    def _edges(self) -> tuple[Ints, Ints, Ints] | None:
        """Where `_tables`, one behind the other, have both halves of each run of each width; and where the next width begins.

        None where nodes differ in size.
        """
        if not all(runs.width for runs in self._widths):
            return None
        nodes = self.counts.size
        tables = np.cumsum([0, *(nodes + 1 - (1 << k) for k in range(nodes.bit_length()))])
        levels = [runs.width.bit_length() - 1 for runs in self._widths]
        left = [tables[k] + np.arange(runs.stops.size) for k, runs in zip(levels, self._widths, strict=True)]
        right = [each + runs.width - (1 << k) for each, k, runs in zip(left, levels, self._widths, strict=True)]
        begins = np.cumsum([0, *(each.size for each in left[:-1])])
        return np.concatenate(left), np.concatenate(right), begins


class UnevenReplicaLoads(ReplicaLoads):
    """Loads of replicas of different speeds."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.slowness = np.zeros_like(self.loads)
        self.slowness[self.line.places] = 1 / problem.speeds - 1 / self.usual

    def _keys(self, seconds: float) -> Floats:
        """When each place is free for a ring of so many seconds, and how much later that ends by its speed; a row a node."""
        return (self.loads + self.slowness * seconds).reshape(self.rows.shape)

    def choose(self, degree: int, seconds: float) -> Seats:
        keys = self._keys(seconds)
        if degree <= self.size:
            return self._inside(int(_first_at(keys, degree).argmin()), keys, degree)
        return self._nodes(degree, _whole(keys, self.counts))

    def _cut(self, places: Ints, degree: int) -> Ints:
        """More replicas could be slow ones. One replica of a node by itself would have more peers than two."""
        return places[: min(degree + (degree % self.size == 1), self.most)]

    def occupy(self, places: Ints, until: float) -> None:
        self.loads[places] = until

    def end(self, seats: Seats, seconds: float) -> float:
        slowest = float(self.slowness[seats.places].max())
        return seats.start + seconds * (1 / self.usual + slowest)

    def starts(self, seconds: float) -> Iterator[Starts]:
        keys = self._keys(seconds)
        yield Starts(np.arange(1, self.size + 1), _first(keys))
        if self._widths:
            yield self._of_nodes(_whole(keys, self.counts))


def replica_loads(problem: Problem) -> ReplicaLoads:
    even = bool((problem.speeds == problem.speeds[0]).all())
    return ReplicaLoads(problem) if even else UnevenReplicaLoads(problem)


def _first(rows: Floats) -> Floats:
    """Returns per degree when the first of all windows of so many neighbours in a node is free."""
    columns = np.ascontiguousarray(rows.T)
    window, found = columns, [np.minimum.reduce(columns, axis=None)]
    for width in range(1, columns.shape[0]):
        window = np.maximum(window[:-1], columns[width:])
        found.append(np.minimum.reduce(window, axis=None))
    return np.array(found)


def _first_at(rows: Floats, degree: int) -> Floats:
    """The same of one degree."""
    window, width = np.ascontiguousarray(rows.T), 1
    while width < degree:
        more = min(width, degree - width)
        window, width = np.maximum(window[:-more], window[more:]), width + more
    free: Floats = window.min(axis=0)
    return free


def _whole(rows: Floats, counts: Ints) -> Floats:
    """Returns when all replicas of each node are free."""
    columns = rows.T.copy()
    columns[np.arange(columns.shape[0])[:, None] >= counts] = -np.inf
    free: Floats = columns.max(axis=0)
    return free


def _window(row: list[float], degree: int) -> int:
    """Returns where the window begins that is free first; of several, the one that waits least."""
    windows = [row[k : k + degree] for k in range(len(row) - degree + 1)]
    ends = list(map(max, windows))
    least = min(ends)
    first = [k for k, end in enumerate(ends) if end == least]
    return first[0] if len(first) == 1 else max(first, key=lambda k: fsum(windows[k]))
