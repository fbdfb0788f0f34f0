"""ByteScale's balance scheduler (arXiv 2502.21231, sections 5.1 and 5.2, Algorithm 2): least degrees, level ranks.

Faithful: every sequence has the least degree that fits (eq. 3 without offload), short ones are best-fit packs, ranks run
different numbers of micro-batches, and the next work goes to the ranks that are the furthest behind. DP-Balance takes
it from the first bucket, the longest sequences that are left; PP-Balance from all buckets in turn, so that each
pipeline keeps to one length class.

Open in the paper, decided here at its best: buckets of equal work, as many as ranks; delta is 0, and of the target ranks
the least loaded come first; where a ring wants more than there are, the next ones fill up; members of a ring share
a node where the degree allows it; a rank whose bucket is empty takes from the next one.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heapreplace
from math import fsum

import numpy as np
from numpy.typing import NDArray

from coxswain.plan.problem import Draft, Problem
from coxswain.plan.rivals.naive import best_fit
from coxswain.plan.simulate import task_seconds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def bytescale(problem: Problem) -> list[Draft]:
    """Rings first, longest first, then packs: by DP-Balance, or by PP-Balance where replicas have several stages."""
    loads = np.zeros(problem.replicas)
    drafts = _rings(problem, loads)
    short = np.flatnonzero(problem.lengths <= problem.capacity).tolist()
    packs = best_fit(problem.lengths.tolist(), short, problem.capacity)
    seconds_of = task_seconds(problem)
    seconds = [seconds_of((0,), pack) for pack in packs]
    order = sorted(range(len(packs)), key=lambda k: (-seconds[k], k))
    buckets = _buckets([(seconds[k], packs[k]) for k in order], problem.replicas if problem.stages.max() > 1 else 1)
    return drafts + _packs(problem, buckets, loads)


def _rings(problem: Problem, loads: Floats) -> list[Draft]:
    """Gives each long sequence to the least loaded ranks; `loads` grow."""
    drafts, seconds_of = list[Draft](), task_seconds(problem)
    for i in np.argsort(-problem.lengths, kind="stable").tolist():
        length = int(problem.lengths[i])
        if length <= problem.capacity:
            break
        members = _least_loaded(loads, -(-length // problem.capacity), problem.nodes)
        drafts.append(Draft(tuple(members.tolist()), (i,)))
        seconds = seconds_of(*drafts[-1][:2])
        loads[members] = loads[members].max() + seconds / problem.speeds[members].min()
    return drafts


def _least_loaded(loads: Floats, degree: int, nodes: Ints) -> Ints:
    """Of the node where so many are free first, else of all."""
    order = np.lexsort((loads, nodes))
    at = np.arange(degree - 1, order.size)
    whole = at[nodes[order[at]] == nodes[order[at - degree + 1]]]  # the last of `degree` ranks of one node
    if not whole.size:
        return np.sort(np.argsort(loads, kind="stable")[:degree])
    last = int(whole[loads[order[whole]].argmin()])
    return np.sort(order[last - degree + 1 : last + 1])


Work = tuple[float, tuple[int, ...]]  # seconds at speed 1, sequences


def _buckets(work: list[Work], count: int) -> list[deque[Work]]:
    """Cuts the work, longest first, into buckets of equal sums."""
    buckets = [deque[Work]() for _ in range(count)]
    share, done = fsum(seconds for seconds, _ in work) / count, 0.0
    for seconds, pack in work:
        buckets[min(int(done / share), count - 1)].append((seconds, pack))
        done += seconds
    return buckets


def _packs(problem: Problem, buckets: list[deque[Work]], loads: Floats) -> list[Draft]:
    """Lets the least loaded rank take from its bucket, the next one with work, until all are empty."""
    drafts = []
    queue = [(float(load), rank) for rank, load in enumerate(loads)]
    heapify(queue)
    own = [rank * len(buckets) // problem.replicas for rank in range(problem.replicas)]
    for _ in range(sum(map(len, buckets))):
        load, rank = queue[0]
        while not buckets[own[rank]]:
            own[rank] = (own[rank] + 1) % len(buckets)
        seconds, pack = buckets[own[rank]].popleft()
        heapreplace(queue, (load + seconds / float(problem.speeds[rank]), rank))
        drafts.append(Draft((rank,), pack))
    return drafts
