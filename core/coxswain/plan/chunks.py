"""How a ring cuts its sequence: 2D chunks, head and tail to one member.

Causal attention costs more at the end of a sequence than at its start. Head and tail together make
the members' work even without padding.
"""

from __future__ import annotations

from itertools import accumulate

from coxswain.plan.values import Slice


def ring_slices(sequence: int, length: int, members: tuple[int, ...]) -> list[Slice]:
    """The slices of a ring task: head then tail of each member, in ring order.

    Chunks differ in size by at most one token; empty ones are not listed.
    """
    cuts = _cuts(length, len(members))
    last = len(cuts) - 1
    slices = []
    for i, replica in enumerate(members):
        for start, stop in ((cuts[i], cuts[i + 1]), (cuts[last - 1 - i], cuts[last - i])):
            if start < stop:
                slices.append(Slice(replica, sequence, start, stop))
    return slices


def _cuts(length: int, degree: int) -> list[int]:
    """The 2D+1 borders of the chunks.

    A member's two chunks together have floor or ceil of length / D tokens. Cutting at
    length * i / 2D instead could give a member one token more than it has room for.
    """
    share, more = divmod(length, degree)
    tokens = [share + 1] * more + [share] * (degree - more)
    heads = [(t + 1) // 2 for t in tokens]
    tails = [t // 2 for t in reversed(tokens)]
    return list(accumulate(heads + tails, initial=0))
