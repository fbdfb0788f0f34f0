"""Exact greedy filling: layers into stages, micro-batches into replicas. Both are min-max of sums that grow by steps."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from math import fsum


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
    missing, replicas = count - sum(found), range(len(found))
    if missing > 0:
        heap = [(pace[i] * (found[i] + 1) + start[i], i) for i in replicas]
        heapify(heap)
        for _ in range(missing):
            end, i = heap[0]
            found[i] += 1
            heapreplace(heap, (end + pace[i], i))
    for _ in range(-missing):
        i = max((i for i in replicas if found[i] > 1), key=lambda i: pace[i] * found[i] + start[i])
        found[i] -= 1
    return found
