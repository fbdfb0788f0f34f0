"""Slow second implementations of what planners compute, to compare the fast ones with."""

from __future__ import annotations

from itertools import groupby

from coxswain.cost import Constants
from coxswain.plan.problem import Draft, Problem


def ring_slices(length: int, members: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(replica, start, stop), head then tail of each member: every token is dealt by itself.

    Heads lie in ring order, tails in reverse. A member's tokens are an even share; its head gets the odd one.
    """
    degree = len(members)
    quota = [length // degree + (i < length % degree) for i in range(degree)]
    owners = [(i, "head") for i in range(degree) for _ in range(quota[i] - quota[i] // 2)]
    owners += [(i, "tail") for i in reversed(range(degree)) for _ in range(quota[i] // 2)]
    runs = [(owner, [token for token, _ in run]) for owner, run in groupby(enumerate(owners), key=lambda pair: pair[1])]
    return [(members[i], run[0], run[-1] + 1) for (i, _), run in sorted(runs)]


def task_seconds(c: Constants, lengths: list[int], degree: int, inside_node: bool) -> float:
    """A pack (degree 1), or a ring of sequences: its member computes D blocks and waits for D - 1 to arrive."""
    shares = [s / degree for s in lengths]
    block = c.attention_ns_per_token2 * 1e-9 * sum(s * s for s in shares)
    gbps = c.inside_node_gbps if inside_node else c.between_nodes_gbps
    arrival = c.kv_bytes_per_token * sum(shares) / (gbps * 1e9)
    return c.task_ms / 1000 + c.linear_us_per_token * 1e-6 * sum(shares) + block + (degree - 1) * max(block, arrival)


def run(problem: Problem, drafts: list[Draft]) -> list[float]:
    """When each task ends. Wave by wave every replica has a queue; a task runs once it heads those of all its members."""
    clock, ends = [0.0] * problem.replicas, [0.0] * len(drafts)
    for wave in sorted({draft.wave for draft in drafts}):
        clock = [max(clock)] * problem.replicas
        _run_wave(problem, drafts, wave, clock, ends)
    return ends


def _run_wave(problem: Problem, drafts: list[Draft], wave: int, clock: list[float], ends: list[float]) -> None:
    queues = [[k for k, d in enumerate(drafts) if r in d.members and d.wave == wave] for r in range(problem.replicas)]
    while any(queues):
        k = next(q[0] for q in queues if q and all(queues[r][0] == q[0] for r in drafts[q[0]].members))
        members, sequences, _ = drafts[k]
        inside = len({int(problem.nodes[r]) for r in members}) == 1
        lengths = [int(problem.lengths[i]) for i in sequences]
        seconds = task_seconds(problem.cost.constants, lengths, len(members), inside)
        ends[k] = max(clock[r] for r in members) + seconds / min(problem.speeds[r] for r in members)
        for r in members:
            clock[r] = ends[k]
            queues[r].pop(0)


def best_fit(lengths: list[int], capacity: int) -> list[list[int]]:
    """Longest first, each into the fullest pack that holds it; the earliest of several."""
    packs: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        room = [capacity - sum(lengths[j] for j in pack) for pack in packs]
        fitting = [p for p in range(len(packs)) if room[p] >= lengths[i]]
        if not fitting:
            packs.append([i])
        else:
            packs[min(fitting, key=lambda p: (room[p], p))].append(i)
    return packs


def water_level(levels: list[float], speeds: list[float], work: float) -> float:
    """By bisection: the time at which all that replicas do behind their levels is the work."""
    low, high = 0.0, max(levels) + work / min(speeds) + 1
    for _ in range(200):
        middle = (low + high) / 2
        done = sum(v * max(0.0, middle - t) for t, v in zip(levels, speeds, strict=True))
        low, high = (low, middle) if done >= work else (middle, high)
    return high


def least_degree(problem: Problem, length: int, target: float) -> tuple[int, bool]:
    """The least degree that holds the sequence and ends it by `target`, and whether there is one; else the fastest."""
    seconds = {
        d: task_seconds(problem.cost.constants, [length], d, d <= problem.node_size)
        for d in range(2, problem.max_degree + 1)
        if length <= d * problem.capacity
    }
    good = [d for d, t in seconds.items() if t <= target]
    return (min(good), True) if good else (min(seconds, key=lambda d: seconds[d]), False)
