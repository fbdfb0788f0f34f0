"""Naive HDP (ByteScale, Algorithm 1): least degrees that fit, best-fit packs, tasks dealt in turn."""

from __future__ import annotations

from bisect import bisect_left, insort

from coxswain.plan.problem import Draft, Problem


def naive(problem: Problem) -> list[Draft]:
    """Deals the same number of tasks to every replica, whatever they cost."""
    lengths: list[int] = problem.lengths.tolist()
    short = [i for i, s in enumerate(lengths) if s <= problem.capacity]
    wants: list[tuple[int, tuple[int, ...]]] = [
        (-(-s // problem.capacity), (i,)) for i, s in enumerate(lengths) if s > problem.capacity
    ]
    wants += [(1, pack) for pack in best_fit(lengths, short, problem.capacity)]
    drafts, cursor = [], 0
    for degree, sequences in wants:
        members = sorted((cursor + k) % problem.replicas for k in range(degree))
        drafts.append(Draft(tuple(members), sequences))
        cursor = (cursor + degree) % problem.replicas
    return drafts


def best_fit(lengths: list[int], sequences: list[int], capacity: int) -> list[tuple[int, ...]]:
    """Makes packs of at most `capacity` tokens.

    Longest first, each sequence goes into the fullest pack that still holds it.
    """
    packs: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, pack), sorted
    for i in sorted(sequences, key=lambda i: (-lengths[i], i)):
        at = bisect_left(room, (lengths[i], -1))
        if at == len(room):
            left, pack = capacity, len(packs)
            packs.append([])
        else:
            left, pack = room.pop(at)
        packs[pack].append(i)
        if left > lengths[i]:
            insort(room, (left - lengths[i], pack))
    return [tuple(pack) for pack in packs]
