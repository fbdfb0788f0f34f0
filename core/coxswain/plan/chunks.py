"""How a ring cuts its sequence: 2D chunks, head and tail to one member, so that causal work is even without padding."""

from __future__ import annotations

from itertools import accumulate, pairwise

from coxswain.plan.values import Slice, Task

Chunk = tuple[int, int]  # tokens [start, stop) of the sequence


def ring_chunks(length: int, degree: int) -> tuple[Chunk, ...]:
    """The 2D chunks in order of position; sizes differ by at most one token and may be 0.

    The i-th member's two chunks together have floor or ceil of length / D tokens. Cutting at length * i / 2D instead
    would give a member up to one token more than that, so more than it has room for.
    """
    return tuple(pairwise(_cuts(length, degree)))


def member_chunks(length: int, degree: int, member: int) -> tuple[Chunk, Chunk]:
    """Head and tail of the `member`-th in ring order: chunks i and 2D-1-i."""
    chunks = ring_chunks(length, degree)
    return chunks[member], chunks[2 * degree - 1 - member]


def ring_slices(sequence: int, length: int, members: tuple[int, ...]) -> list[Slice]:
    """The slices of a ring task, head then tail of each member in ring order; empty chunks are not listed."""
    cuts = _cuts(length, len(members))
    last = len(cuts) - 1
    slices = []
    for i, replica in enumerate(members):
        for start, stop in ((cuts[i], cuts[i + 1]), (cuts[last - 1 - i], cuts[last - i])):
            if start < stop:
                slices.append(Slice(replica, sequence, start, stop))
    return slices


def chunk_table(task: Task, length: int) -> tuple[tuple[Chunk, Chunk], ...]:
    """Head and tail of every member of a ring task, in ring order: what a worker needs to walk the ring."""
    degree = len(task.replicas)
    chunks = ring_chunks(length, degree)
    return tuple((chunks[i], chunks[2 * degree - 1 - i]) for i in range(degree))


def _cuts(length: int, degree: int) -> list[int]:
    """The 2D+1 borders of the chunks."""
    share, more = divmod(length, degree)
    tokens = [share + 1] * more + [share] * (degree - more)
    heads = [(t + 1) // 2 for t in tokens]
    tails = [t // 2 for t in reversed(tokens)]
    return list(accumulate(heads + tails, initial=0))
