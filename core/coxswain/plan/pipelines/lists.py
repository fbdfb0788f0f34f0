"""Operation lists as arrays: all stages of all replicas in one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coxswain.layout import Layout
from coxswain.plan.values import Operation, StageOperations

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Place = tuple[int, int]  # replica, stage


@dataclass(frozen=True, slots=True)
class Places:
    """All stages of all replicas, by replica, then stage."""

    replica: Ints
    stage: Ints
    following: Ints  # stages from this one to the last, this one included

    @property
    def last(self) -> Bools:
        last: Bools = self.following == 1
        return last

    @property
    def replicas(self) -> int:
        return int(self.replica.max(initial=-1)) + 1

    def __len__(self) -> int:
        return self.replica.size

    def name(self, place: int) -> Place:
        return int(self.replica[place]), int(self.stage[place])


def places_of(layout: Layout) -> Places:
    depth = np.array([len(replica.stages) for replica in layout.replicas], dtype=np.int64)
    replica = np.repeat(np.arange(depth.size), depth)
    stage = np.arange(replica.size) - np.repeat(np.cumsum(depth) - depth, depth)
    return Places(replica, stage, depth[replica] - stage)


@dataclass(frozen=True, slots=True)
class Operations:
    """The lists of all places in one row: those of place k are [first[k], first[k + 1])."""

    place: Ints
    backward: Bools
    task: Ints
    first: Ints

    def take(self, chosen: Bools) -> Operations:
        place = self.place[chosen]
        return Operations(place, self.backward[chosen], self.task[chosen], starts(place, self.first.size - 1))


def operations_of(lists: Sequence[StageOperations]) -> Operations:
    """`lists`: in the order of the places."""
    place = np.repeat(np.arange(len(lists)), [len(each.operations) for each in lists])
    flat = [o for each in lists for o in each.operations]
    task = np.fromiter([o.task for o in flat], dtype=np.int64, count=len(flat))
    backward = np.fromiter([o.kind == "B" for o in flat], dtype=np.bool_, count=len(flat))
    return Operations(place, backward, task, starts(place, len(lists)))


def starts(place: Ints, count: int) -> Ints:
    """Where each of `count` numbers begins in an array of them that rises, and where the last one ends."""
    return np.searchsorted(place, np.arange(count + 1))


def joined(parts: Sequence[Operations], places: int) -> Operations:
    """Each place's lists one after another."""
    place = np.concatenate([np.zeros(0, dtype=np.int64), *(part.place for part in parts)])
    backward = np.concatenate([np.zeros(0, dtype=np.bool_), *(part.backward for part in parts)])
    task = np.concatenate([np.zeros(0, dtype=np.int64), *(part.task for part in parts)])
    order = np.argsort(place, kind="stable")
    return Operations(place[order], backward[order], task[order], starts(place[order], places))


def stage_lists(places: Places, operations: Operations, tasks: int) -> tuple[StageOperations, ...]:
    """The lists as values of a plan. Equal operations are one object."""
    table = np.array([*(Operation("F", t) for t in range(tasks)), *(Operation("B", t) for t in range(tasks)), None])
    found = table[operations.task + tasks * operations.backward].tolist()
    cuts = operations.first.tolist()
    return tuple(
        StageOperations(r, s, tuple(found[a:b]))
        for r, s, (a, b) in zip(places.replica.tolist(), places.stage.tolist(), pairwise(cuts), strict=True)
    )
