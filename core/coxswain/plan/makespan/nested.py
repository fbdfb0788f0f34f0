"""Places rings on aligned blocks of replicas that nest: for steps of mostly long sequences.

Rings of any degrees leave holes beside each other that only short sequences could fill. A ring over a whole block costs
hardly more than one over few of its replicas, and leaves none. Blocks are parts of a node, a node, two nodes, four
nodes, and so on. A sequence goes to the base size, or to the least that holds it and ends it in time. The largest
blocks are filled first, from the beginning of the step. The blocks of the base size take the rest, longest first, and are
levelled; room is kept for the short sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from coxswain.cost.model import Floats
from coxswain.plan.degrees import degrees_by
from coxswain.plan.makespan.blocks import Blocks, Ints
from coxswain.plan.makespan.line import Line, line_of
from coxswain.plan.makespan.loads import Seats
from coxswain.plan.makespan.rings import Rings, RingSchedule
from coxswain.plan.problem import Problem

LEVEL = 1.003  # times the mean: good enough to stop


@dataclass(frozen=True, slots=True)
class Level:
    """The blocks of one size, as places of the line, and their classes: equal degree, slowest speed and link."""

    blocks: list[Ints]
    classes: Floats  # per class: degree, speed, whether inside a node
    of: Ints  # class of each block

    def seconds(self, problem: Problem, lengths: Ints) -> Floats:
        """Returns the seconds of each ring on each class; inf: does not fit."""
        out = np.full((len(self.classes), lengths.size), np.inf)
        for row, (degree, rate, inside) in zip(out, self.classes.tolist(), strict=True):
            if degree >= 2:
                fits, s = lengths <= degree * problem.capacity, lengths.astype(np.float64)
                row[fits] = (problem.cost.ring_seconds(s, np.full_like(s, degree), bool(inside)) / rate)[fits]
        return out


def block_sizes(problem: Problem) -> list[int]:
    """Even parts of a node, a node, and doubled nodes, up to the largest degree, which is the last one. Ascending."""
    node, most = min(problem.node_size, problem.replicas), problem.max_degree
    sizes = [d for d in range(2, node + 1) if node % d == 0]
    while sizes[-1:] < [problem.replicas] and max([*sizes, node]) * 2 < most:
        sizes.append(max([*sizes, node]) * 2)
    return sorted({size for size in sizes if size <= most} | {most} - {1})


def level_of(problem: Problem, line: Line, size: int) -> Level:
    """Cuts each node into blocks of `size` replicas and a rest, or joins as many whole nodes as have so many."""
    places = np.sort(line.places)
    nodes = np.split(places, np.cumsum(line.counts)[:-1])
    if size <= line.size:
        blocks = [block for node in nodes for block in np.split(node, range(size, node.size, size))]
    else:
        run = -(-size // line.size)
        blocks = [np.concatenate(nodes[k : k + run])[:size] for k in range(0, len(nodes), run)]
    speeds = problem.speeds[line.replicas]
    blocks = [_without_slow(block, speeds[block]) for block in blocks]
    classes, of = np.unique(
        [(b.size, speeds[b].min(), b[0] // line.size == b[-1] // line.size) for b in blocks],
        axis=0,
        return_inverse=True,
    )
    return Level(blocks, classes, of.reshape(-1))


def _without_slow(block: Ints, speeds: Floats) -> Ints:
    """Leaves out the last places of a block where a ring is faster without them, which are slow."""
    if block.size < 3 or speeds.min() == speeds.max():
        return block
    return block[: int((np.minimum.accumulate(speeds) * np.arange(1, block.size + 1)).argmax()) + 1]


class Nest:
    """Rings of the larger blocks first, then those of the base size; and when each place of the line is free."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.line = problem, line_of(problem)
        self.rings = Rings(self.line)
        self.free = np.full(self.line.replicas.size, np.inf)
        self.free[self.line.places] = 0.0

    def add(self, sequence: int, block: Ints, seconds: float) -> float:
        """Adds a ring on a block; returns its end."""
        places = self.line.turned(block)
        free = self.free[places]
        start = float(np.maximum.reduce(free))
        self.rings.add(sequence, Seats(places, free, start))
        self.free[block] = start + seconds
        return start + seconds

    def stack(self, size: int, long: Ints) -> None:
        """Adds rings on the blocks of a size, longest first, each where it ends first."""
        level = level_of(self.problem, self.line, size)
        seconds = level.seconds(self.problem, self.problem.lengths[long])
        ends = self._ends(level)
        for i in np.argsort(-seconds.min(axis=0), kind="stable").tolist():
            best = int((ends + seconds[level.of, i]).argmin())
            ends[best] = self.add(int(long[i]), level.blocks[best], float(seconds[level.of[best], i]))

    def base(self, size: int, long: Ints, short: Ints, give_up: float) -> bool:
        """Adds rings on the blocks of the base size, as level as may be; False if that cannot end before `give_up`."""
        level, problem = level_of(self.problem, self.line, size), self.problem
        bundles = problem.cost.task + problem.cost.work_seconds(problem.lengths[short[::size]])
        own = level.seconds(problem, problem.lengths[long])
        packs = bundles * size / (level.classes[:, :1] * level.classes[:, 1:2])
        seconds, before = np.concatenate([own, packs], axis=1), self._ends(level)
        if float(own.min(axis=0).sum() + before.sum()) / before.size >= give_up:
            return False
        blocks = deal_longest_first(level, seconds, before.copy())
        blocks.level(LEVEL * _even(level, seconds, before))
        for i, block in enumerate(blocks.where[: long.size].tolist()):
            self.add(int(long[i]), level.blocks[block], float(seconds[level.of[block], i]))
        return True

    def _ends(self, level: Level) -> Floats:
        return np.array([self.free[block].max() for block in level.blocks])


def place_nested(
    problem: Problem, long: Ints, short: Ints, base: int, goal: float, give_up: float
) -> RingSchedule | None:
    """Places the rings of the long sequences on nested blocks, those of the base size level; and leaves room for packs.

    Rings shall end within `goal` seconds. None where the larger blocks, or even level ones of the base size without the
    short sequences, would end at `give_up` or later.
    """
    sizes = np.array([size for size in block_sizes(problem) if size >= base])
    wanted = degrees_by(problem, problem.lengths[long], goal)
    at, nest = np.minimum(np.searchsorted(sizes, wanted), sizes.size - 1), Nest(problem)
    for k in np.unique(at[at > 0])[::-1].tolist():
        nest.stack(int(sizes[k]), long[at == k])
    free = nest.free[nest.line.places]
    if free.max() >= give_up or not nest.base(base, long[at == 0], short, give_up):
        return None
    return nest.rings.schedule(nest.free[nest.line.places])


def _even(level: Level, seconds: Floats, before: Floats) -> float:
    """Returns when all blocks would end if all that is to be done could be divided at will."""
    rates = level.classes[:, 0] * level.classes[:, 1]
    each = rates[level.of]
    return float(((seconds * rates[:, None]).min(axis=0).sum() + (before * each).sum()) / each.sum())


def deal_longest_first(level: Level, seconds: Floats, loads: Floats) -> Blocks:
    """Gives each sequence to the block that ends it first, of several to the first one."""
    where = np.zeros(seconds.shape[1], dtype=np.int64)
    order = np.argsort(-seconds.min(axis=0), kind="stable")
    if len(seconds) == 1:
        return Blocks(level.of, seconds, _to_the_lowest(seconds[0, order].tolist(), order, loads), loads)
    for i in order.tolist():
        ends = loads + seconds[level.of, i]
        where[i] = best = int(ends.argmin())
        loads[best] = ends[best]
    return Blocks(level.of, seconds, where, loads)


def _to_the_lowest(seconds: list[float], order: Ints, loads: Floats) -> Ints:
    """The same where all blocks take as long; `loads` grow. Loads that differ may end as one, once they are rounded."""
    blocks, where = dict[float, list[int]](), np.zeros_like(order)
    for block, load in enumerate(loads.tolist()):
        blocks.setdefault(load, []).append(block)
    heap = sorted(blocks)
    for i, took in zip(order.tolist(), seconds, strict=True):
        end, alike = heap[0] + took, [heappop(heap)]
        while heap and heap[0] + took == end:
            alike.append(heappop(heap))
        where[i] = block = heappop(blocks[min(alike, key=lambda load: blocks[load][0])])
        for load in alike:
            if blocks[load]:
                heappush(heap, load)
            else:
                del blocks[load]
        if end not in blocks:
            heappush(heap, end)
        heappush(blocks.setdefault(end, []), block)
        loads[block] = end
    return where
