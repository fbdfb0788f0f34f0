"""How a ring cuts its sequences: each into 2D chunks, head and tail to one member.

Causal attention costs more at the end of a sequence than at its start. Head and tail together make
the members' work even without padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from coxswain.plan.values import Slice


def ring_slices(sequences: Sequence[int], lengths: Sequence[int], members: tuple[int, ...]) -> list[Slice]:
    """The slices of a ring task, by sequence: head then tail of each member, in ring order. `lengths`: of the step.

    Chunks of a sequence differ in size by at most one token; empty ones are not listed. The tokens that do not divide
    go to members in turn, on from one sequence to the next, so all members hold the same number but for one.
    """
    slices, turn = list[Slice](), 0
    for sequence in sequences:
        slices += _chunks(sequence, lengths[sequence], members, turn)
        turn = (turn + lengths[sequence]) % len(members)
    return slices


def _chunks(sequence: int, length: int, members: tuple[int, ...], turn: int) -> Iterator[Slice]:
    cuts = _cuts(length, len(members), turn)
    last = len(cuts) - 1
    for i, replica in enumerate(members):
        for start, stop in ((cuts[i], cuts[i + 1]), (cuts[last - 1 - i], cuts[last - i])):
            if start < stop:
                yield Slice(replica, sequence, start, stop)


def _cuts(length: int, degree: int, turn: int) -> list[int]:
    """The 2D+1 borders of the chunks; members from `turn` on have one of the tokens that do not divide.

    A member's two chunks together have floor or ceil of length / D tokens. Cutting at
    length * i / 2D instead could give a member one token more than it has room for.
    """
    share, more = divmod(length, degree)
    tokens = [share + ((i - turn) % degree < more) for i in range(degree)]
    heads = [(t + 1) // 2 for t in tokens]
    tails = [t // 2 for t in reversed(tokens)]
    return list(accumulate(heads + tails, initial=0))
