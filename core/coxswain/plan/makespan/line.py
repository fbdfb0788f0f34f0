"""The line on which replicas stand, node by node, and the order of a ring over neighbours on it.

A ring takes neighbours of one node, or neighbouring nodes. It goes up one side of them and down the other, so that
everyone's neighbours in any ring are at most two places away: over all steps of a run a replica meets few others,
and each needs buffers. Beyond a node, rings enter a node at its first replica and leave it at its second one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from coxswain.plan.problem import Problem

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Line:
    """Places of replicas: `size` a node, of which the last ones of a smaller node are empty."""

    size: int
    counts: Ints  # replicas of each node
    places: Ints  # of each replica
    replicas: Ints  # of each place; 0 where it is empty

    def turned(self, places: Ints) -> Ints:
        """Returns these places in ring order; they must rise."""
        count = int(places[-1] // self.size - places[0] // self.size) + 1
        if count == 1:
            return places[_fold(places.size)]
        if places.size == count * self.size:
            return places.reshape(count, self.size)[_fold(count)][:, _fold(self.size)].ravel()
        nodes = np.split(places, np.flatnonzero(np.diff(places // self.size)) + 1)
        return np.concatenate([nodes[k][_fold(nodes[k].size)] for k in _fold(len(nodes)).tolist()])

    def window(self, begin: int, degree: int) -> Ints:
        """Returns so many neighbours of one node in ring order."""
        return begin + _fold(degree)


def line_of(problem: Problem) -> Line:
    """Replicas by node; in a node, the fastest first."""
    size, counts = min(problem.node_size, problem.replicas), np.bincount(problem.nodes)
    order = np.lexsort((-problem.speeds, problem.nodes))
    inside = np.arange(problem.replicas) - np.repeat(np.cumsum(counts) - counts, counts)
    places, replicas = np.empty_like(order), np.zeros(counts.size * size, dtype=np.int64)
    places[order] = problem.nodes[order] * size + inside
    replicas[places] = np.arange(problem.replicas)
    return Line(size, counts, places, replicas)


@lru_cache(maxsize=1024)
def _fold(count: int) -> Ints:
    """Returns 0, 2, 4, ... and back ..., 5, 3, 1. Three of them are neighbours in any order."""
    order = np.arange(count)
    return order if count < 4 else np.concatenate([order[::2], order[1::2][::-1]])
