"""One draw from one source: the next piece of a split sample, or the next sample of the pass."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Literal

from msgspec.structs import replace

from coxswain.errors import Refused
from coxswain.membership.values import Sequence, SourceCursor

LongSequences = Literal["Split", "Truncate", "Drop"]
At = Callable[[int, int], tuple[int, int]]
"""(pass, n) -> (index, length) of the n-th sample of that pass."""


def draw(
    cursor: SourceCursor,
    samples: int,
    max_passes: int,
    at: At,
    longest: int,
    policy: LongSequences,
    held_out: Container[int] = (),
    shortest: int = 0,
) -> tuple[Sequence | None, SourceCursor]:
    """Returns the source's next sequence and the cursor behind it. Samples that are `held_out` are passed over.

    The sequence is None when all that was left of the last pass is dropped or held out. Raises Refused
    when the source has no sample that the policy lets through. `shortest`: tokens of its shortest sample, if known: then it
    says so without a walk over all of them.
    """
    if policy == "Drop" and shortest > longest:
        return None, _without_any(cursor, samples, max_passes, longest)
    for _ in range(2 * samples + 1):  # from anywhere in a pass, this gets behind the whole next one
        if cursor.exhausted:
            return None, cursor
        index, length = at(cursor.epoch, cursor.drawn)
        if index not in held_out and (policy != "Drop" or length <= longest):
            return _take(cursor, samples, max_passes, index, length, longest, policy)
        cursor = _next_sample(cursor, samples, max_passes)
    raise nothing_to_draw(cursor.name, samples, longest, some_held_out=bool(held_out))


def _without_any(cursor: SourceCursor, samples: int, max_passes: int, longest: int) -> SourceCursor:
    """Behind the source's last pass, where every sample is dropped; the walk over them finds the same."""
    if cursor.exhausted:
        return cursor
    left = (max_passes - cursor.epoch) * samples - cursor.drawn
    if not 0 < left <= 2 * samples:
        raise nothing_to_draw(cursor.name, samples, longest)
    drawn = cursor.total_samples + left
    return replace(cursor, epoch=max_passes, drawn=0, total_samples=drawn, piece=0, piece_index=-1, exhausted=True)


def nothing_to_draw(source: str, samples: int, longest: int, some_held_out: bool = False) -> Refused:
    """`some_held_out`: of its samples, perhaps all that fit."""
    which = "samples that are not held out" if some_held_out else "samples"
    fewer = "lower evaluation.tokens, " if some_held_out else ""
    return Refused(
        "NothingToDraw",
        f"source {source!r}: none of its {samples} {which} has at most {longest} tokens; allowed with longSequences: Drop is a "
        f"source with shorter samples. Raise batch.maxSequenceTokens, {fewer}or use Split or Truncate",
    )


def _take(
    cursor: SourceCursor, samples: int, max_passes: int, index: int, length: int, longest: int, policy: LongSequences
) -> tuple[Sequence, SourceCursor]:
    stop = min(cursor.piece + longest, length)
    sequence = Sequence(cursor.name, cursor.epoch, index, cursor.piece, stop, length)
    tokens = stop - cursor.piece
    counted = replace(cursor, tokens=cursor.tokens + tokens, total_tokens=cursor.total_tokens + tokens)
    if stop < length and policy == "Split":
        return sequence, replace(counted, piece=stop, piece_index=index)
    return sequence, _next_sample(counted, samples, max_passes)


def _next_sample(cursor: SourceCursor, samples: int, max_passes: int) -> SourceCursor:
    """Moves behind the current sample. A pass ends in the next one, or the source leaves the mix."""
    epoch, drawn = cursor.epoch, cursor.drawn + 1
    if drawn == samples:
        epoch, drawn = epoch + 1, 0
    return replace(
        cursor, epoch=epoch, drawn=drawn, total_samples=cursor.total_samples + 1, piece=0, piece_index=-1,
        exhausted=bool(max_passes) and epoch >= max_passes,
    )  # fmt: skip
