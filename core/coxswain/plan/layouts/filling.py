"""Exact greedy filling: layers into stages, micro-batches into replicas. Both are min-max of sums that grow by steps."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from math import fsum

import numpy as np

from coxswain.plan.water_level import water_level


def fill_layers(
    layers: int, each: Sequence[float], extra: Sequence[float], most: Sequence[int]
) -> tuple[int, ...] | None:
    """Layers of each stage, so that the slowest stage is as fast as it can be; None: they do not fit.

    Stage j takes each[j] seconds a layer and extra[j] besides, and holds 1 to most[j] layers.
    """
    if sum(most) < layers or min(most) < 1 or len(each) > layers:
        return None
    level = (layers + fsum(b / a for a, b in zip(each, extra, strict=True))) / fsum(1 / a for a in each)
    found = [min(cap, max(1, int((level - b) / a))) for a, b, cap in zip(each, extra, most, strict=True)]
    missing, stages = layers - sum(found), range(len(found))
    if missing > 0:
        full = float("inf")
        ends = [each[j] * (found[j] + 1) + extra[j] if found[j] < most[j] else full for j in stages]
        for _ in range(missing):
            j = ends.index(min(ends))
            found[j] += 1
            ends[j] = ends[j] + each[j] if found[j] < most[j] else full
    for _ in range(-missing):
        j = max((j for j in stages if found[j] > 1), key=lambda j: each[j] * found[j] + extra[j])
        found[j] -= 1
    return tuple(found)


def relaxed_level(count: int, pace: Sequence[float], start: Sequence[float]) -> float:
    """When all replicas end if micro-batches could be cut at will: replica i ends m * pace[i] + start[i]."""
    return (count + fsum(s / p for p, s in zip(pace, start, strict=True))) / fsum(1 / p for p in pace)


def fill_counts(count: int, pace: Sequence[float], start: Sequence[float]) -> list[int] | None:
    """Micro-batches of each replica, at least one, so that the last one ends early; None: fewer than replicas."""
    if count < len(pace):
        return None
    level = relaxed_level(count, pace, start)
    found = [max(1, int((level - s) / p)) for p, s in zip(pace, start, strict=True)]
    missing = count - sum(found)
    if missing > 0:
        return _with_more(found, missing, pace, start)
    if -missing > len(pace):  # as where a replica's start is many times its pace: the others got its share
        found = _at_most(found, count, pace, start)
    return _with_fewer(found, sum(found) - count, pace, start)


def _with_more(found: list[int], more: int, pace: Sequence[float], start: Sequence[float]) -> list[int]:
    """One by one to the replica that ends first with it."""
    heap = [(pace[i] * (n + 1) + start[i], i) for i, n in enumerate(found)]
    heapify(heap)
    for _ in range(more):
        end, i = heap[0]
        found[i] += 1
        heapreplace(heap, (end + pace[i], i))
    return found


def _with_fewer(found: list[int], fewer: int, pace: Sequence[float], start: Sequence[float]) -> list[int]:
    """One by one from the replica that ends last, as long as it has another."""
    heap = [(-(pace[i] * n + start[i]), i) for i, n in enumerate(found) if n > 1]
    heapify(heap)
    for _ in range(fewer):
        i = heappop(heap)[1]
        found[i] -= 1
        if found[i] > 1:
            heappush(heap, (-(pace[i] * found[i] + start[i]), i))
    return found


def _at_most(found: Sequence[int], count: int, pace: Sequence[float], start: Sequence[float]) -> list[int]:
    """What is left once no replica has more than there are beside the first of each other one, or ends later than all need to.

    By `end` all can end but those whose first one ends later: each ends one of its own after the level at most.
    """
    most, firsts = count - len(pace) + 1, np.array(start) + np.array(pace)
    level = water_level(firsts, 1 / np.array(pace), count - len(pace))
    end = level + max((p for p, first in zip(pace, firsts.tolist(), strict=True) if first < level), default=0.0)
    return [max(1, min(n, most, int((end - s) / p) + 1)) for n, p, s in zip(found, pace, start, strict=True)]
