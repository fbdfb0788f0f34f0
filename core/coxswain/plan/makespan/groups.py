"""Fills aligned groups of a power of two of replicas, for costs that add up per sequence (FlexSP's rules).

Where a group costs much however little it does, as with collectives of all parameters, several sequences share one
group. Groups are the nodes of a binary tree over the replicas, and each replica runs those of its ancestors from the
root down, so it never waits: it ends after the sum of them. Only the choice of node and group matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
TARGETS = (1.08, 1.16)  # times the bound
CLOSE = 1.005  # times its target: good enough to stop


@dataclass(frozen=True, slots=True)
class Rules:
    """N replicas that hold so many tokens each, the degrees of groups, and what those cost."""

    replicas: int
    capacity: int
    degrees: tuple[int, ...]  # powers of two, ascending
    seconds: Callable[[Floats, int], Floats]  # of each sequence at a degree, without the cost of its group
    group_seconds: float

    def time(self, group: tuple[int, list[int]], lengths: list[int]) -> float:
        """Returns the seconds of a group of a degree and its sequences."""
        degree, sequences = group
        return self.group_seconds + float(self.seconds(np.array([lengths[i] for i in sequences], float), degree).sum())

    def bound(self, lengths: list[int]) -> float:
        """A time before which no plan ends: each sequence at its cheapest degree, or the longest at its fastest."""
        s = np.array(lengths, dtype=np.float64)
        fits = [s <= d * self.capacity for d in self.degrees]
        seconds = [np.where(fit, self.seconds(s, d), np.inf) for fit, d in zip(fits, self.degrees, strict=True)]
        work = np.min([d * t for d, t in zip(self.degrees, seconds, strict=True)], axis=0).sum()
        groups = self.group_seconds * max(1.0, float(s.sum()) / (self.capacity * self.replicas))
        return max(groups + float(work) / self.replicas, self.group_seconds + float(np.min(seconds, axis=0).max()))


class GroupTask(NamedTuple):
    """Sequences of one task on the replicas from `first` on."""

    first: int
    degree: int
    sequences: list[int]


@dataclass(slots=True)
class Level:
    """All nodes of one degree: when each is free, the room of its emptiest group, and its groups with their room."""

    degree: int
    seconds: list[float]  # per sequence
    free: Floats
    room: NDArray[np.int64]
    groups: dict[int, list[tuple[int, list[int]]]] = field(default_factory=dict)

    def first(self, length: int, group_seconds: float) -> tuple[float, int]:
        """Returns when the node that is ready first can begin a sequence, and which one that is."""
        ready = np.where(self.room >= length, self.free, self.free + group_seconds)
        node = int(ready.argmin())
        return float(ready[node]), node

    def put(self, node: int, sequence: int, length: int, capacity: int) -> bool:
        """Adds the sequence to the fullest group of the node that holds it; returns whether that is a new one."""
        groups = self.groups.setdefault(node, [])
        room, k = min([(room, k) for k, (room, _) in enumerate(groups) if room >= length], default=(capacity, -1))
        if k < 0:
            groups.append((capacity, []))
        groups[k] = room - length, groups[k][1]
        groups[k][1].append(sequence)
        self.room[node] = max([left for left, _ in groups])
        return k < 0


def fill_groups(rules: Rules, lengths: list[int]) -> list[GroupTask]:
    """Returns the tasks, widest first, of the first target that is met, else of the best."""
    bound, best = rules.bound(lengths), (np.inf, list[Level]())
    for target in TARGETS:
        best = min(best, _filled(rules, lengths, target * bound), key=itemgetter(0))
        if best[0] <= CLOSE * target * bound:
            break
    return [
        GroupTask(node * level.degree, level.degree, sequences)
        for level in reversed(best[1])
        for node, groups in sorted(level.groups.items())
        for _, sequences in groups
    ]


def _filled(rules: Rules, lengths: list[int], target: float) -> tuple[float, list[Level]]:
    """Gives each sequence, longest first, to the least degree that ends it by the target, else to the first to end."""
    s = np.array(lengths, dtype=np.float64)
    nodes = [np.zeros(rules.replicas // d) for d in rules.degrees]
    levels = [
        Level(d, rules.seconds(s, d).tolist(), free, np.zeros(free.size, dtype=np.int64))
        for d, free in zip(rules.degrees, nodes, strict=True)
    ]
    for i in np.argsort(-s, kind="stable").tolist():
        end, chosen, node = np.inf, 0, 0
        for k, level in enumerate(levels):
            if lengths[i] <= level.degree * rules.capacity:
                ready, first = level.first(lengths[i], rules.group_seconds)
                if ready + level.seconds[i] < end:
                    end, chosen, node = ready + level.seconds[i], k, first
                if end <= target:
                    break
        level = levels[chosen]
        new = level.put(node, i, lengths[i], level.degree * rules.capacity)
        _occupy(levels, chosen, node, level.seconds[i] + rules.group_seconds * new)
    return max(float(level.free.max()) for level in levels), levels


def _occupy(levels: list[Level], chosen: int, node: int, seconds: float) -> None:
    """Keeps a node and all below it busy longer; a node above is free with the last one below it."""
    for k in range(chosen + 1):
        below = 1 << (chosen - k)
        levels[k].free[node * below : (node + 1) * below] += seconds
    for k in range(chosen, len(levels) - 1):
        node >>= 1
        if node >= levels[k + 1].free.size:
            break
        levels[k + 1].free[node] = levels[k].free[2 * node : 2 * node + 2].max()
