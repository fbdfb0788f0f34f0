"""FlexSP's two reductions (arXiv 2412.01523, section 4.1.3 and 4.2): buckets of lengths, and the sequence blaster."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
CANDIDATES = 512  # bounds that a bucket may have; beyond that many sequences, evenly spread ones


def bucket(lengths: list[int], count: int) -> list[list[int]]:
    """Cuts indices of ascending lengths into at most `count` buckets with the least sum of (upper bound - length).

    err[i][b] = min over j of err[j][b - 1] + the error of one bucket of the sequences j to i.
    """
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    cuts = np.unique(np.linspace(0, len(order), min(len(order), CANDIDATES) + 1).astype(np.int64))
    s = np.array([lengths[i] for i in order], dtype=np.float64)
    sums = np.concatenate([[0.0], np.cumsum(s)])[cuts]
    error = s[cuts[1:] - 1] * (cuts[1:] - cuts[:-1, None]) - (sums[1:] - sums[:-1, None])
    error[np.tril_indices_from(error, -1)] = np.inf  # row: the first of a bucket, column: the last
    return [order[a:b] for a, b in _borders(error, cuts, count)]


def _borders(error: NDArray[np.float64], cuts: Ints, count: int) -> list[tuple[int, int]]:
    """Walks the table back from the last sequence; buckets ascending."""
    best, chosen = error[0], list[Ints]()
    for _ in range(min(count, len(error)) - 1):
        table = error[1:] + best[:-1, None]
        better = table.min(axis=0) < best
        chosen.append(np.where(better, table.argmin(axis=0) + 1, 0))
        best = np.where(better, table.min(axis=0), best)
    borders, last = list[tuple[int, int]](), len(error) - 1
    for first_of in reversed(chosen):
        if (first := int(first_of[last])) > 0:
            borders.append((int(cuts[first]), int(cuts[last + 1])))
            last = first - 1
    return [(0, int(cuts[last + 1])), *borders[::-1]]


def blast(lengths: list[int], count: int) -> list[list[int]]:
    """Cuts indices of falling lengths into at most `count` micro-batches, the most tokens in one as few as possible."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    falling = [lengths[i] for i in order]
    low, high = max(falling), sum(falling)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_runs(falling, middle)) <= count else (middle + 1, high)
    ends = accumulate(_runs(falling, low))
    return [order[end - size : end] for end, size in zip(ends, _runs(falling, low), strict=True)]


def _runs(lengths: list[int], most: int) -> list[int]:
    """Returns how many sequences in a row have at most so many tokens, run by run."""
    runs, tokens = [0], 0
    for s in lengths:
        if tokens + s > most:
            runs.append(0)
            tokens = 0
        runs[-1] += 1
        tokens += s
    return runs
