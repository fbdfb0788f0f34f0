"""Model state named by boxes: every element of every tensor is (parameter, logical box).

Tensor shards, layer owners and ZeRO-1 shards are all boxes. Checkpoint, resume, migration and export are one operation:
intersect the boxes that are held with the boxes that are needed, and move the difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import msgspec

from coxswain.structs import prepare


class Box(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Elements [offset, offset + shape) of the logical tensor `name`, one pair per dimension."""

    name: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)


def full_box(name: str, shape: tuple[int, ...]) -> Box:
    return Box(name, (0,) * len(shape), shape)


def intersect(a: Box, b: Box) -> Box | None:
    """Returns the common part of two boxes of one tensor; None when there is none."""
    if a.name != b.name:
        return None
    starts = tuple(max(x, y) for x, y in zip(a.offset, b.offset, strict=True))
    stops = tuple(
        min(ao + asz, bo + bsz) for ao, asz, bo, bsz in zip(a.offset, a.shape, b.offset, b.shape, strict=True)
    )
    if any(stop <= start for start, stop in zip(starts, stops, strict=True)):
        return None
    return Box(a.name, starts, tuple(stop - start for start, stop in zip(starts, stops, strict=True)))


def window(outer: Box, inner: Box) -> tuple[slice, ...]:
    """Returns the index of `inner` within an array that holds `outer`."""
    return tuple(slice(i - o, i - o + n) for i, o, n in zip(inner.offset, outer.offset, inner.shape, strict=True))


class Piece(msgspec.Struct, frozen=True):
    """`part` of the needed box `need` is found in the held box `have`."""

    need: Box
    have: Box
    part: Box


def match(have: Iterable[Box], need: Iterable[Box]) -> tuple[list[Piece], list[Box]]:
    """Returns the pieces of held boxes that fill needed ones, and the boxes not covered whole.

    Held boxes of one tensor must not overlap.
    """
    held: dict[str, list[Box]] = {}
    for box in have:
        held.setdefault(box.name, []).append(box)
    pieces: list[Piece] = []
    missing: list[Box] = []
    for box in need:
        mine = [Piece(box, h, part) for h in held.get(box.name, []) if (part := intersect(h, box))]
        pieces += mine
        if sum(p.part.elements for p in mine) != box.elements:
            missing.append(box)
    return pieces, missing


def zero_shard(box: Box, owners: int, owner: int) -> Box | None:
    """Returns the rows of `box` whose ZeRO-1 state the `owner`-th of `owners` keeps, or None.

    Per parameter and along its first dimension, so that moving a layer moves whole intervals.
    """
    rows = box.shape[0]
    start, stop = rows * owner // owners, rows * (owner + 1) // owners
    if start == stop:
        return None
    return Box(box.name, (box.offset[0] + start, *box.offset[1:]), (stop - start, *box.shape[1:]))


prepare(__name__)
