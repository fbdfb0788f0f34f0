"""FlexSP (arXiv 2412.01523; code: AFDWang/Hetu-Galvatron, branch flexsp, galvatron/flexsp_solver).

Faithful: the blaster cuts the step into M micro-batches of falling lengths and even tokens, for five M from the least
that fits; each micro-batch is a MILP over 16 buckets of lengths, their bounds by dynamic programming, and virtual
groups of a power of two of replicas each; the least time of the longest group wins, and the M with the least sum.
Groups are aligned neighbours; micro-batches are waves, since every group takes part in each (ZeRO-3). As in its code
the homogeneous plans, one degree for all groups, start the search.

Decided at its best: degree 1 is offered too; groups may leave replicas idle; sequences of a bucket go to its groups in
turn, longest first; times are the cost model's, per sequence, an upper bound of a ring's of several. Programs are limited
by counts. Where HiGHS finds nothing better, or there are too many groups for it, the best homogeneous plan stays.
"""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush, heapreplace
from itertools import pairwise
from math import fsum
from typing import NamedTuple

import numpy as np

from coxswain.plan.makespan.groups import Rules
from coxswain.plan.problem import Draft, Problem
from coxswain.plan.rivals.buckets import blast, bucket
from coxswain.plan.rivals.degrees import powers_of_two, seconds_at
from coxswain.plan.rivals.milp import Budget, Floats, Program, solve

BUCKETS = 16
OPTIONS = 5  # numbers of micro-batches that are tried
PROGRAMS = 6  # of a step
COLUMNS = 4_000  # of a program; beyond it HiGHS finds nothing in its budget
CLOSE = 1.01  # times the bound: a homogeneous plan is good enough
BUDGET = Budget(nodes=20, looks=20)

Group = tuple[int, list[int]]  # degree, sequences


class Batch(NamedTuple):
    """A micro-batch: its sequences, longest first, its best homogeneous plan, when that ends, and a bound for any plan."""

    part: list[int]
    start: list[Group]
    seconds: float
    bound: float


def flexsp(problem: Problem, budget: Budget = BUDGET, columns: int = COLUMNS) -> list[Draft]:
    """`columns`: of the largest program that is solved."""
    rules = _rules(problem)
    lengths: list[int] = problem.lengths.tolist()
    if not lengths:
        return []
    return [
        draft
        for wave, groups in enumerate(plan(rules, lengths, budget, columns=columns))
        for draft in _drafts(groups, wave)
    ]


def _rules(problem: Problem) -> Rules:
    degrees = powers_of_two(problem)
    return Rules(problem.replicas, problem.capacity, degrees, partial(seconds_at, problem), problem.cost.task)


def plan(
    rules: Rules, lengths: list[int], budget: Budget, programs: int = PROGRAMS, columns: int = COLUMNS
) -> list[list[Group]]:
    """Returns the micro-batches, of all numbers of them the fastest; solves at most so many programs of so many columns.

    Numbers of micro-batches are solved in the order of their homogeneous plans; those that cannot be faster are not.
    """
    options = sorted(_options(rules, lengths), key=lambda batches: fsum(b.seconds for b in batches))
    best, seconds = [b.start for b in options[0]], fsum(b.seconds for b in options[0])
    for batches in options:
        if fsum(b.bound for b in batches) >= seconds:
            continue
        loose = [b for b in batches if b.seconds > CLOSE * b.bound][:programs]
        programs -= len(loose)
        found = [_solved(rules, lengths, b, budget, columns) if b in loose else b.start for b in batches]
        if (took := fsum(longest(rules, groups, lengths) for groups in found)) < seconds:
            best, seconds = found, took
    return best


def _options(rules: Rules, lengths: list[int]) -> list[list[Batch]]:
    """Cuts the step into the least number of micro-batches for which homogeneous plans have room, and into the next ones."""
    count, options = -(-sum(lengths) // (rules.replicas * rules.capacity)), list[list[Batch]]()
    while len(options) < OPTIONS and not (options and count > len(lengths)):
        batches = [_batch(rules, lengths, part) for part in blast(lengths, count)]
        fitting = [batch for batch in batches if batch is not None]
        options += [fitting] if len(fitting) == len(batches) else []
        count += 1
    return options


def longest(rules: Rules, groups: list[Group], lengths: list[int]) -> float:
    return max(rules.time(group, lengths) for group in groups)


def _batch(rules: Rules, lengths: list[int], part: list[int]) -> Batch | None:
    """Returns a micro-batch with its best homogeneous plan; None if no degree has room for it."""
    starts = [found for degree in rules.degrees if (found := _homogeneous(rules, lengths, part, degree))]
    if not starts:
        return None
    best = min(starts, key=lambda groups: longest(rules, groups, lengths))
    return Batch(part, best, longest(rules, best, lengths), rules.bound([lengths[i] for i in part]))


def _homogeneous(rules: Rules, lengths: list[int], part: list[int], degree: int) -> list[Group] | None:
    """Longest first, each sequence to the least loaded of the groups with room."""
    groups: list[Group] = [(degree, []) for _ in range(rules.replicas // degree)]
    seconds = rules.seconds(np.array([lengths[i] for i in part], dtype=np.float64), degree).tolist()
    loads = [(0.0, g, degree * rules.capacity) for g in range(len(groups))]
    for i, took in zip(part, seconds, strict=True):  # part falls in length
        full = list[tuple[float, int, int]]()
        while loads and loads[0][2] < lengths[i]:
            full.append(heappop(loads))
        if not loads:
            return None
        load, g, room = loads[0]
        heapreplace(loads, (load + took, g, room - lengths[i]))
        groups[g][1].append(i)
        for other in full:
            heappush(loads, other)
    return [group for group in groups if group[1]]


def _solved(rules: Rules, lengths: list[int], batch: Batch, budget: Budget, columns: int) -> list[Group]:
    """Solves the program of a micro-batch; its start where that is good, or the program too large or no better."""
    buckets = [[batch.part[k] for k in b] for b in bucket([lengths[i] for i in batch.part], BUCKETS)]
    slots = [d for d in rules.degrees for _ in range(rules.replicas // d)]
    if len(slots) * (len(buckets) + 1) > columns:
        return batch.start
    program, counts = _program(rules, [(max(lengths[i] for i in b), len(b)) for b in buckets], slots)
    point = solve(program, _point(rules, lengths, buckets, slots, batch.start), budget)
    if point is None:
        return batch.start
    found = _groups(lengths, buckets, slots, np.rint(point[counts]).astype(int).tolist())
    return min(batch.start, found, key=lambda groups: longest(rules, groups, lengths))


def _program(rules: Rules, buckets: list[tuple[int, int]], slots: list[int]) -> tuple[Program, list[list[int]]]:
    """Returns the program and its columns of counts, per bucket and slot: how many sequences of which go where.

    Column 0 is the time of the longest group, the next ones say which slots are used. Sequences count with the
    greatest length of their bucket.
    """
    program, infinity = Program(), float("inf")
    end = program.column(infinity, cost=1.0, real=True)
    used = [program.column(1) for _ in slots]
    counts = [[program.column(n if s <= d * rules.capacity else 0) for d in slots] for s, n in buckets]
    for row, (_, n) in zip(counts, buckets, strict=True):
        program.row([(column, 1.0) for column in row], n, n)
    sizes = np.array([s for s, _ in buckets], dtype=np.float64)
    seconds = {d: rules.seconds(sizes, d).tolist() for d in set(slots)}
    for p, d in enumerate(slots):
        mine = [row[p] for row in counts]
        program.row([(used[p], -float(d * rules.capacity)), *zip(mine, sizes.tolist(), strict=True)], -infinity, 0)
        program.row([(end, -1.0), (used[p], rules.group_seconds), *zip(mine, seconds[d], strict=True)], -infinity, 0)
    program.row([(u, float(d)) for u, d in zip(used, slots, strict=True)], 0, rules.replicas)
    for (u, d), (v, e) in pairwise(zip(used, slots, strict=True)):
        if d == e:  # slots of one degree are alike: the first ones are used
            program.row([(u, 1.0), (v, -1.0)], 0, 1)
    return program, counts


def _point(
    rules: Rules, lengths: list[int], buckets: list[list[int]], slots: list[int], groups: list[Group]
) -> Floats | None:
    """Returns a plan as a point of the program; None if it holds it no longer with the lengths of the buckets."""
    bucket_of = {i: b for b, members in enumerate(buckets) for i in members}
    bounds = [max(lengths[i] for i in members) for members in buckets]
    used, counts, most = [0.0] * len(slots), [[0.0] * len(slots) for _ in buckets], 0.0
    for p, (degree, sequences) in enumerate(groups, start=slots.index(groups[0][0])):
        rounded = [bounds[bucket_of[i]] for i in sequences]
        if sum(rounded) > degree * rules.capacity:
            return None
        most = max(most, rules.time((degree, list(range(len(rounded)))), rounded))
        used[p] = 1.0
        for i in sequences:
            counts[bucket_of[i]][p] += 1
    return np.array([most, *used, *(n for row in counts for n in row)])


def _groups(lengths: list[int], buckets: list[list[int]], slots: list[int], counts: list[list[int]]) -> list[Group]:
    """Deals the sequences of each bucket, longest first, to its slots in turn."""
    found: list[Group] = [(degree, []) for degree in slots]
    for members, quota in zip(buckets, counts, strict=True):
        turns = sorted((turn, p) for p, n in enumerate(quota) for turn in range(n))
        for i, (_, p) in zip(sorted(members, key=lambda i: (-lengths[i], i)), turns, strict=True):
            found[p][1].append(i)
    return [group for group in found if group[1]]


def _drafts(groups: list[Group], wave: int) -> list[Draft]:
    """Places groups on neighbours, greatest first: each begins at a multiple of its degree."""
    drafts, first = list[Draft](), 0
    for degree, sequences in sorted(groups, key=lambda group: -group[0]):
        drafts.append(Draft(tuple(range(first, first + degree)), tuple(sequences), wave))
        first += degree
    return drafts
