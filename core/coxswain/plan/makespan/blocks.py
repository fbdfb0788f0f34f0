"""Places rings on whole blocks of replicas, a node each: for steps of mostly long sequences.

Rings of different degrees leave holes beside each other that only short sequences could fill. A ring over a whole node
costs hardly more than one over few of its replicas, and leaves none. What remains is to level the blocks: longest first,
then exchanges of sequences between the block that ends last and any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapreplace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import Floats
from coxswain.plan.makespan.rings import Gaps, Ring, RingSchedule, ring_seconds
from coxswain.plan.problem import Problem

Ints = NDArray[np.int64]
EXCHANGES = 8  # per block, at most
LEVEL = 1.003  # times the mean: good enough to stop
PAIRS = 50_000  # exchanges of two sequences against two are tried where there are at most so many
ATTEMPTS = (1, 16), (1, 1 << 30), (2, 1 << 30)  # sequences a side, and blocks asked: until one helps
GAIN = 1e-9  # of a second


@dataclass(slots=True)
class Blocks:
    """Which sequence is in which block, and when each block ends. Blocks of equal degree and rate are of one class."""

    of: Ints  # per block its class
    seconds: Floats  # per class and sequence; inf: does not fit
    where: Ints
    loads: Floats

    def level(self, goal: float) -> None:
        """Exchanges sequences until every block ends by the goal, or none helps any more."""
        for _ in range(EXCHANGES * self.loads.size):
            top = int(self.loads.argmax())
            if self.loads[top] <= goal or not any(self._exchange(top, most, count) for most, count in ATTEMPTS):
                return

    def _exchange(self, top: int, most: int, count: int) -> bool:
        """Gives up to `most` sequences of a block for as many of another or none, where the later of both ends first.

        The other one is among the `count` blocks that end first.
        """
        mine = _sets(np.flatnonzero(self.where == top), self.where, most)
        theirs, blocks = self._others(top, most, count)
        if len(mine) * len(theirs) > PAIRS:
            return False
        padded = np.concatenate([self.seconds, np.zeros((len(self.seconds), 1))], axis=1)
        here, there = padded[self.of[top]], self.of[blocks]
        change = here[theirs].sum(axis=1) - here[mine].sum(axis=1)[:, None]
        left = padded[there[:, None], theirs].sum(axis=1)
        come = padded[:, mine].sum(axis=2)[there].T
        ends = np.maximum(self.loads[top] + change, self.loads[blocks] - left + come)
        give, take = divmod(int(ends.argmin()), len(theirs))
        if not ends[give, take] < self.loads[top] - GAIN:
            return False
        other = int(blocks[take])
        self.loads[top] += change[give, take]
        self.loads[other] += come[give, take] - left[take]
        self.where[mine[give][mine[give] >= 0]] = other
        self.where[theirs[take][theirs[take] >= 0]] = top
        return True

    def _others(self, top: int, most: int, count: int) -> tuple[Ints, Ints]:
        """What other blocks can give, and which block that is; nothing is one of the choices."""
        asked = np.argsort(self.loads, kind="stable")[:count]
        asked = asked[asked != top]
        able = np.zeros(self.loads.size, dtype=bool)
        able[asked] = True
        sets = _sets(np.flatnonzero(able[self.where]), self.where, most)
        nothing = np.full((asked.size, 2), -1)
        return np.concatenate([sets, nothing]), np.concatenate([self.where[sets[:, 0]], asked])


def _sets(items: Ints, where: Ints, most: int) -> Ints:
    """Returns single items, and pairs of one block if `most` is 2, as rows of two; -1: none."""
    single = np.stack([items, np.full_like(items, -1)], axis=1)
    if most < 2:
        return single
    order = items[np.argsort(where[items], kind="stable")]
    groups = np.split(order, np.flatnonzero(np.diff(where[order])) + 1)
    pairs = [pair for group in groups for pair in combinations(group.tolist(), 2)]
    return np.concatenate([single, np.array(pairs, dtype=np.int64).reshape(-1, 2)])


def block_sizes(problem: Problem, longest: int) -> list[int]:
    """Replicas of a block: even parts of a node, else the least whole nodes, that hold the longest sequence.

    Ascending; only those of which there are two or more.
    """
    least, node = max(2, -(-longest // problem.capacity)), min(problem.node_size, problem.replicas)
    parts = [d for d in range(least, node + 1) if node % d == 0] or [-(-least // node) * node]
    return [size for size in parts if size <= min(problem.max_degree, problem.replicas // 2)]


def blocks_of(problem: Problem, size: int) -> list[Ints]:
    """Cuts each node into blocks of `size` replicas and a rest, or joins whole nodes until they have so many."""
    order = np.argsort(problem.nodes, kind="stable")
    nodes = np.split(order, np.cumsum(np.bincount(problem.nodes))[:-1])
    if size <= problem.node_size:
        return [block for node in nodes for block in np.split(node, range(size, node.size, size))]
    blocks = [nodes[0]]
    for node in nodes[1:]:
        if blocks[-1].size < size:
            blocks[-1] = np.concatenate([blocks[-1], node])
        else:
            blocks.append(node)
    most = problem.max_degree
    return [part for block in blocks for part in np.split(block, range(most, block.size, most))]


def place_blocks(problem: Problem, long: Ints, short: Ints, size: int, give_up: float) -> RingSchedule | None:
    """Places the rings of the long sequences on blocks of `size` replicas, and leaves room for the short ones.

    Both longest first. None where even level blocks, without the short ones, would end at `give_up` or later.
    """
    members = blocks_of(problem, size)
    kinds, of = np.unique([(m.size, problem.speeds[m].min()) for m in members], axis=0, return_inverse=True)
    lengths = problem.lengths[long]
    bundles = problem.cost.task + problem.cost.work_seconds(problem.lengths[short[::size]])
    rings = np.stack([_seconds(problem, lengths, int(degree), float(rate)) for degree, rate in kinds])
    seconds = np.concatenate([rings, bundles * size / kinds.prod(axis=1, keepdims=True)], axis=1)
    if float(rings.min(axis=0).sum()) / len(members) >= give_up:
        return None
    blocks = _longest_first(members, of.reshape(-1), seconds)
    blocks.level(LEVEL * float(seconds.min(axis=0).sum()) / len(members))
    return _schedule(problem, blocks, members, long)


def _seconds(problem: Problem, lengths: Ints, degree: int, rate: float) -> Floats:
    if degree < 2:
        return np.full(lengths.shape, np.inf)
    seconds = ring_seconds(problem, lengths, np.full_like(lengths, degree)) / rate
    return np.where(lengths <= degree * problem.capacity, seconds, np.inf)


def _longest_first(members: list[Ints], of: Ints, seconds: Floats) -> Blocks:
    """Gives each sequence to the block that ends it first, of several to the first one."""
    loads, where = np.zeros(len(members)), np.zeros(seconds.shape[1], dtype=np.int64)
    even = len(seconds) == 1
    queue = [(0.0, block) for block in range(len(members))]
    for i in np.argsort(-seconds.min(axis=0), kind="stable").tolist():
        if even:
            end, best = queue[0][0] + float(seconds[0, i]), queue[0][1]
            heapreplace(queue, (end, best))
        else:
            ends = loads + seconds[of, i]
            best = int(ends.argmin())
            end = float(ends[best])
        where[i], loads[best] = best, end
    return Blocks(of, seconds, where, loads)


def _schedule(problem: Problem, blocks: Blocks, places: list[Ints], sequences: Ints) -> RingSchedule:
    """One ring after the other in each block, longest first."""
    rings, loads = list[Ring](), np.zeros(problem.replicas)
    for i in range(sequences.size):
        block = int(blocks.where[i])
        members = places[block]
        rings.append(Ring(int(sequences[i]), members, float(loads[members[0]])))
        loads[members] += blocks.seconds[blocks.of[block], i]
    nothing = Gaps(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))
    return RingSchedule(tuple(rings), loads, nothing)
