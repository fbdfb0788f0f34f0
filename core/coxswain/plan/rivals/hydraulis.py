"""Hydraulis's two-stage assignment (arXiv 2412.07894; code: PKU-DAIR/Hetu, examples/hydraulis/strategy/new_dynamic.py).

Faithful: of the strategies that hold the longest sequence each is tried. Stage 1 dispatches the sequences to its
pipelines by list scheduling in random orders (seeds 0, 1, ...), those that only the longest pipelines hold first, each
where max over pipelines of (sum + (p - 1) longest) stays least. Stage 2 packs each pipeline's sequences into v
micro-batches, for v from the least that its tokens allow on, by a binary program with the least longest one, and takes
the v with the least (longest + c) (p - 1 + v).

Decided at its best: a pipeline is a group of replicas that cuts its sequences over its members, as a greater tensor
degree would; the strategies are meshes of one degree and mixes of a group or more for the longest sequences with
smaller groups (which strategies a job has is planned once, by `cox plan strategy`); ties go to the pipeline
with least work; a strategy is judged by its longest pipeline, not by the greatest pipeline number as in that code;
a greedy packing within 1 % of its bound is not solved again; programs are limited by counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from coxswain.plan.problem import Draft, Problem
from coxswain.plan.rivals.degrees import powers_of_two, seconds_at
from coxswain.plan.rivals.milp import Budget, Program, solve
from coxswain.plan.rivals.naive import best_fit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ORDERS = 100  # random orders of the dispatch
PLACED = 200_000  # sequences in all orders together: with more of them there are fewer orders
COUNTS = 16  # numbers of micro-batches of a pipeline
PROGRAMS = 64  # of a step
COLUMNS = 6_000
NEVER = 1e30  # seconds; not inf, which has no multiple of 0
HALVINGS = 40  # of the interval of times in which the best mix is
CLOSE = 1.01  # times its bound: a greedy packing is good enough
BUDGET = Budget(nodes=50, looks=300)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Neighbouring replicas that run micro-batches together, in `stages` stages."""

    members: tuple[int, ...]
    stages: int
    capacity: int  # tokens of a micro-batch
    speed: float
    seconds: Floats  # of each sequence at speed 1, without the cost of its micro-batch; NEVER: does not fit
    task: float  # seconds of a micro-batch besides

    def time(self, batches: list[list[int]]) -> float:
        """(longest + c) (p - 1 + v)."""
        longest = max((float(self.seconds[batch].sum()) for batch in batches), default=0.0)
        return (longest + self.task) * (self.stages - 1 + len(batches)) / self.speed if batches else 0.0


def hydraulis(problem: Problem, budget: Budget = BUDGET) -> list[Draft]:
    if not problem.lengths.size:
        return []
    plans = list[tuple[float, list[Draft]]]()
    for pipelines in strategies(problem):
        parts = dispatch(pipelines)
        packed = _packed(pipelines, problem.lengths.tolist(), parts, budget)
        longest = max(pipeline.time(batches) for pipeline, batches in zip(pipelines, packed, strict=True))
        plans.append((longest, _drafts(pipelines, packed)))
    return min(plans, key=itemgetter(0))[1]


def _drafts(pipelines: list[Pipeline], packed: list[list[list[int]]]) -> list[Draft]:
    return [Draft(p.members, tuple(b)) for p, batches in zip(pipelines, packed, strict=True) for b in batches]


def strategies(problem: Problem) -> list[list[Pipeline]]:
    """Returns the strategies: one degree for all pipelines, and the mix of degrees that is best by sums of work."""
    degrees = powers_of_two(problem)
    longest = int(problem.lengths.max(initial=1))
    one = next(d for d in degrees if d * problem.capacity >= longest)
    every = [[one] * (problem.replicas // one), mix(problem, [d for d in degrees if d <= one])]
    return [_pipelines(problem, groups) for groups in every]


def _pipelines(problem: Problem, degrees: list[int]) -> list[Pipeline]:
    lengths, firsts = problem.lengths.astype(np.float64), accumulate(degrees, initial=0)
    seconds = {
        d: np.where(lengths <= d * problem.capacity, seconds_at(problem, lengths, d), NEVER) for d in set(degrees)
    }
    groups = [tuple(range(first, first + d)) for first, d in zip(firsts, degrees, strict=False)]
    return [
        Pipeline(
            group,
            int(problem.stages[list(group)].max()),
            len(group) * problem.capacity,
            float(problem.speeds[list(group)].min()),
            seconds[len(group)],
            problem.cost.task,
        )
        for group in groups
    ]


def mix(problem: Problem, degrees: list[int]) -> list[int]:
    """Returns the degrees of all groups, greatest first: the mix of degrees that ends first by sums of work.

    Each interval of lengths has groups of the degree that holds it, as many as end it by a time T. The least T for
    which they are no more than the replicas is found by bisection; replicas that are left serve the shortest.
    """
    lengths = problem.lengths.astype(np.float64)
    own = np.searchsorted(np.array(degrees) * problem.capacity, problem.lengths)
    work = np.array(
        [[float(seconds_at(problem, lengths[own == k], d).sum()) for d in degrees] for k in range(len(degrees))]
    )
    low, high = 0.0, float(work[:, -1].sum()) + problem.cost.task
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _groups(work, degrees, middle, problem.replicas) else (middle, high)
    groups = _groups(work, degrees, high, problem.replicas)
    return sorted(groups + [groups[0]] * ((problem.replicas - sum(groups)) // groups[0]), reverse=True)


def _groups(work: Floats, degrees: list[int], seconds: float, replicas: int) -> list[int]:
    """Returns the fewest replicas' groups, smallest first, that end all classes in time; none where that are too many."""
    best: list[tuple[int, list[int]]] = [(0, [])]
    for last, degree in enumerate(degrees):
        options = []
        for first in range(last + 1):
            count = math.ceil(float(work[first : last + 1, last].sum()) / seconds)
            options.append((best[first][0] + count * degree, best[first][1] + [degree] * count))
        best.append(min(options))
    return best[-1][1] if best[-1][0] <= replicas else []


def dispatch(pipelines: list[Pipeline]) -> list[list[int]]:
    """Returns the sequences of each pipeline: of all random orders the one with the least longest pipeline."""
    kinds = {id(p.seconds): p.seconds for p in pipelines}
    table, kind = np.stack(list(kinds.values())), [list(kinds).index(id(p.seconds)) for p in pipelines]
    speeds = np.array([p.speed for p in pipelines])
    count = table.shape[1]
    only = (table < NEVER).sum(axis=0) == 1  # just the pipelines of the greatest degree hold it
    best: tuple[float, list[list[int]]] = (np.inf, [])
    for seed in range(max(1, min(ORDERS, PLACED // count))):
        order = np.random.Generator(np.random.PCG64(seed)).permutation(count)
        order = np.concatenate([order[only[order]], order[~only[order]]])
        found = _listed(order, table, kind, speeds, np.array([p.stages - 1 for p in pipelines]))
        best = min(best, found, key=itemgetter(0))
    return best[1]


def _listed(
    order: Ints, seconds: Floats, kind: list[int], speeds: Floats, others: Ints
) -> tuple[float, list[list[int]]]:
    """Gives each sequence to the pipeline that sum + (p - 1) longest grows least far; returns the greatest and the parts."""
    sums, longest = np.zeros(speeds.size), np.zeros(speeds.size)
    parts: list[list[int]] = [[] for _ in range(speeds.size)]
    for i in order.tolist():
        mine = seconds[kind, i] / speeds
        ends = sums + mine + others * np.maximum(longest, mine)
        best = int(ends.argmin())
        sums[best] += mine[best]
        longest[best] = max(longest[best], mine[best])
        parts[best].append(i)
    return float((sums + others * longest).max()), parts


def _packed(
    pipelines: list[Pipeline], lengths: list[int], parts: list[list[int]], budget: Budget
) -> list[list[list[int]]]:
    """Packs every pipeline greedily, then solves the programs of the one that ends last while that makes it shorter."""
    packed = [greedy(p, lengths, part) for p, part in zip(pipelines, parts, strict=True)]
    for _ in range(PROGRAMS):
        times = [p.time(batches) for p, batches in zip(pipelines, packed, strict=True)]
        last = times.index(max(times))
        better = _solved(pipelines[last], lengths, parts[last], packed[last], budget)
        if better is packed[last]:
            break
        packed[last] = better
    return packed


def _counts(pipeline: Pipeline, lengths: list[int], part: list[int]) -> range:
    least = -(-sum(lengths[i] for i in part) // pipeline.capacity)
    return range(least, min(len(part), least + COUNTS) + 1)


def greedy(pipeline: Pipeline, lengths: list[int], part: list[int]) -> list[list[int]]:
    """Returns the best greedy packing; best fit where none holds all."""
    tried = [_longest_first(pipeline, lengths, part, v) for v in _counts(pipeline, lengths, part)] if part else [[]]
    found = [batches for batches in tried if batches is not None]
    return min(found, key=pipeline.time) if found else [list(b) for b in best_fit(lengths, part, pipeline.capacity)]


def _longest_first(pipeline: Pipeline, lengths: list[int], part: list[int], count: int) -> list[list[int]] | None:
    """Gives each sequence to the micro-batch with the least work that has room."""
    batches: list[list[int]] = [[] for _ in range(count)]
    work, room = np.zeros(count), np.full(count, pipeline.capacity)
    for i in sorted(part, key=lambda i: (-lengths[i], i)):
        best = int(np.where(room >= lengths[i], work, np.inf).argmin())
        if room[best] < lengths[i]:
            return None
        batches[best].append(i)
        work[best] += pipeline.seconds[i]
        room[best] -= lengths[i]
    return [batch for batch in batches if batch]


def _solved(
    pipeline: Pipeline, lengths: list[int], part: list[int], known: list[list[int]], budget: Budget
) -> list[list[int]]:
    """Returns the best packing of the programs, or the known one where none is better."""
    best, work = known, pipeline.seconds[part]
    for count in _counts(pipeline, lengths, part) if part else ():
        bound = max(float(work.sum()) / count, float(work.max()))
        ends = (bound + pipeline.task) * (pipeline.stages - 1 + count) / pipeline.speed
        if CLOSE * ends < pipeline.time(best) and count * len(part) <= COLUMNS:
            batches = pack(pipeline, lengths, part, count, budget)
            best = min(best, batches or best, key=pipeline.time)
    return best


def pack(pipeline: Pipeline, lengths: list[int], part: list[int], count: int, budget: Budget) -> list[list[int]] | None:
    """Solves the binary program: every sequence in one of `count` micro-batches, the longest as short as possible."""
    program, infinity = Program(), float("inf")
    longest = program.column(infinity, cost=1.0, real=True)
    places = [[program.column(1) for _ in range(count)] for _ in part]
    for row in places:
        program.row([(place, 1.0) for place in row], 1, 1)
    for column in zip(*places, strict=True):
        work = [(place, float(pipeline.seconds[i])) for place, i in zip(column, part, strict=True)]
        program.row([(longest, -1.0), *work], -infinity, 0)
        program.row([(place, lengths[i]) for place, i in zip(column, part, strict=True)], 0, pipeline.capacity)
    point = solve(program, None, budget)
    if point is None:
        return None
    where = point[places].argmax(axis=1).tolist()
    return [batch for b in range(count) if (batch := [i for i, at in zip(part, where, strict=True) if at == b])]
