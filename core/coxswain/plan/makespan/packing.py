"""Fills idle time between and after rings with packs of short sequences, longest first."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import Floats
from coxswain.plan.problem import Problem

Ints = NDArray[np.int64]
ALIKE = 0.95  # times the length of a round's first sequence: bins of unequal speeds end shorter ones in another order


@dataclass(frozen=True, slots=True)
class Bins:
    """Time that packs can take. A replica's tail has no limit (inf), a gap before a ring has one.

    `level` is the time up to which a bin is taken. Gaps are shifted to end at the level to be
    reached: the bin with the lowest level is then always the one with the most room.
    """

    replica: Ints
    level: Floats
    limit: Floats
    start: Floats  # when the bin begins on the replica's clock

    @property
    def size(self) -> int:
        return int(self.replica.size)


@dataclass(frozen=True, slots=True)
class Packing:
    """Per sequence its bin and the number of its pack in the bin; per bin its level afterwards."""

    bin: Ints
    pack: Ints
    level: Floats


def fill_bins(problem: Problem, lengths: Ints, bins: Bins) -> Packing:
    """Assigns sequences to the bin that ends them first, longest first: `lengths` must fall.

    A pack holds at most C tokens; a sequence goes into the first of the bin's packs that holds it.
    A round serves every bin that ends its next sequence before any ends a second one: what
    one-by-one assignment does, but vectorised. Where speeds differ its sequences are alike.
    """
    cost, task = problem.cost.work_seconds(lengths), problem.cost.task
    speed, level = problem.speeds[bins.replica], bins.level.copy()
    even = bool((speed == speed[0]).all())
    like = 0 if even else ALIKE
    ends = np.searchsorted(-lengths, -lengths * like, side="right")  # of rounds, by their first sequence
    room = np.full((bins.size, 4), problem.capacity)
    where, pack = np.empty_like(lengths), np.empty_like(lengths)
    done = 0
    while done < lengths.size:
        room = _with_spare(room, problem.capacity)
        opens = 0 if even else task * _needs_pack(room, int(lengths[done]), problem.capacity) / speed
        seconds = (cost[done] + task if even else cost[done]) / speed
        chosen = _round(level + opens, bins.limit, seconds, int(ends[done]) - done)
        now = slice(done, done + chosen.size)
        at = (room[chosen] >= lengths[now, None]).argmax(axis=1)
        opened = room[chosen, at] == problem.capacity
        room[chosen, at] -= lengths[now]
        level[chosen] += (cost[now] + task * opened) / speed[chosen]
        where[now], pack[now] = chosen, at
        done += chosen.size
    return Packing(where, pack, level)


def _needs_pack(room: Ints, length: int, capacity: int) -> NDArray[np.bool_]:
    """Which bins begin a new pack for such a sequence: none of theirs holds it."""
    holds: NDArray[np.bool_] = (room >= length) & (room < capacity)
    return np.logical_not(holds.any(axis=1))


def _round(start: Floats, limit: Floats, seconds: Floats, most: int) -> Ints:
    """Returns the bins that take the next sequences, the one that ends first in front.

    Bins are compared by start and how much longer than the fastest one they take: equal speeds by start alone.
    """
    key = start + (seconds - seconds.min())
    after = np.where(start + seconds > limit, np.inf, key + seconds)
    chosen = np.flatnonzero((key < after.min()) & (after < np.inf))
    if not chosen.size:  # its seconds are too few to change the sum
        return np.array([after.argmin()])
    return chosen[np.argsort(key[chosen], kind="stable")][:most]


def _with_spare(room: Ints, capacity: int) -> Ints:
    """Keeps one empty pack in every bin, so that a first fit always exists."""
    if (room[:, -1] == capacity).all():
        return room
    return np.concatenate([room, np.full_like(room, capacity)], axis=1)


def fit_bins(problem: Problem, lengths: Ints, bins: Bins, top: float) -> Packing:
    """Assigns sequences, longest first, to the bin that has just enough time until `top`; beyond that, to the lowest.

    Wastes less than `fill_bins` where bins differ by more than a sequence takes. `lengths` must fall; bins have no limit.
    """
    work: list[float] = problem.cost.work_seconds(lengths).tolist()
    speed: list[float] = problem.speeds[bins.replica].tolist()
    where, pack, level = np.empty_like(lengths), np.empty_like(lengths), bins.level.copy()
    left: list[list[int]] = [[] for _ in speed]  # tokens that each pack of a bin still holds
    rooms = sorted(((top - float(level[b])) * speed[b], b) for b in range(bins.size))  # seconds at speed 1
    capacity, task, levels = problem.capacity, problem.cost.task, level.tolist()
    for i, length in enumerate(lengths.tolist()):
        room, best = rooms.pop(min(bisect_left(rooms, (work[i] + task, -1)), len(rooms) - 1))
        mine, took = left[best], work[i]
        at = next((k for k, tokens in enumerate(mine) if tokens >= length), len(mine))
        if at == len(mine):
            mine.append(capacity)
            took += task
        mine[at] -= length
        where[i], pack[i] = best, at
        levels[best] += took / speed[best]
        insort(rooms, (room - took, best))
    return Packing(where, pack, np.array(levels))
