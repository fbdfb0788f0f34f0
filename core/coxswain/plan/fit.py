"""Fills packs of a capacity with sequences, without a clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def next_fit(lengths: Sequence[int], sequences: Iterable[int], capacity: int) -> list[tuple[int, ...]]:
    """Fills packs of at most `capacity` tokens in the order given."""
    packs: list[list[int]] = []
    room = 0
    for i in sequences:
        if lengths[i] > room:
            packs.append([])
            room = capacity
        packs[-1].append(i)
        room -= lengths[i]
    return [tuple(pack) for pack in packs]


def first_fit(lengths: Sequence[int], capacity: int) -> list[tuple[int, ...]]:
    """Puts each sequence, longest first, into the first pack that has room for it."""
    packs, rooms = list[list[int]](), list[int]()
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        k = next((k for k, room in enumerate(rooms) if room >= lengths[i]), len(packs))
        if k == len(packs):
            packs.append([])
            rooms.append(capacity)
        packs[k].append(i)
        rooms[k] -= lengths[i]
    return [tuple(pack) for pack in packs]
