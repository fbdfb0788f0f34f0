"""The order of each stage by its place alone: as many forwards as stages follow, then backward and forward in turn.

Pipelines may order themselves so where every ring comes at one place of all its members' lists: they then go through it in
step. Where a ring comes at different places, they would wait for each other (`simulation.py` orders those).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coxswain.plan.pipelines.lists import Ints, Operations, Places, starts
from coxswain.plan.values import Task


def one_forward_one_backward(places: Places, tasks: Sequence[Task]) -> Operations | None:
    """Returns the lists of all places in this order; None where a ring is not at one place of all its members' lists."""
    replica = np.array([r for task in tasks for r in task.replicas], dtype=np.int64)
    degrees = np.array([len(task.replicas) for task in tasks], dtype=np.int64)
    number = np.repeat(np.array([task.index for task in tasks], dtype=np.int64), degrees)
    order = np.argsort(replica, kind="stable")
    first = starts(replica[order], places.replicas)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size) - first[replica[order]]
    at = np.cumsum(degrees) - degrees
    if (np.repeat(rank[at], degrees) != rank).any():
        return None
    return _lists(places, number[order], first)


def _lists(places: Places, tasks: Ints, first: Ints) -> Operations:
    """`tasks`: of replica r at [first[r], first[r + 1]), in their order."""
    count = np.diff(first)[places.replica]
    place = np.repeat(np.arange(len(places)), count)
    k = np.arange(place.size) - np.repeat(np.cumsum(count) - count, count)
    warm, many = np.minimum(places.following, count)[place], count[place]
    forward = np.where(k < warm, k, 2 * k - warm + 1)
    backward = np.where(k < many - warm, 2 * k + warm, many + k)
    begin = 2 * np.repeat(np.cumsum(count) - count, count)
    task, back = np.empty(2 * k.size, dtype=np.int64), np.zeros(2 * k.size, dtype=np.bool_)
    mine = tasks[first[places.replica[place]] + k]
    task[begin + forward] = task[begin + backward] = mine
    back[begin + backward] = True
    whole = np.repeat(place, 2)
    return Operations(whole, back, task, starts(whole, len(places)))
