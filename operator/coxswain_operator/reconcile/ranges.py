"""Sets of members as short text: `coordinator,loader:0-1,trainer:0-4999`, so that a status of thousands of pods stays small."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

from coxswain_operator.views import member_name


def encode(members: Iterable[str]) -> str:
    """Sorted and without repetitions, so that equal sets are equal text."""
    indexes: dict[str, list[int]] = {}
    for member in members:
        role, _, digits = member.partition("-")
        indexes.setdefault(role, []).append(int(digits or 0))
    parts = (f"{role}:{_runs(sorted(found))}" for role, found in sorted(indexes.items()) if role != "coordinator")
    return ",".join((*(r for r in indexes if r == "coordinator"), *parts))


@lru_cache(maxsize=256)  # most passes read what the one before has read
def decode(text: str) -> frozenset[str]:
    """The members in a text of `encoded`."""
    return frozenset(member for part in text.split(",") if part for member in _members(part))


def _members(part: str) -> Iterator[str]:
    role, _, runs = part.partition(":")
    for run in runs.split("+"):
        first, _, last = run.partition("-")
        yield from (member_name(role, i) for i in range(int(first or 0), int(last or first or 0) + 1))


def _runs(indexes: list[int]) -> str:
    """`0-3+5+7-9` of sorted indexes."""
    starts = [b for a, b in pairwise([indexes[0] - 2, *indexes]) if b > a + 1]
    ends = [a for a, b in pairwise([*indexes, indexes[-1] + 2]) if b > a + 1]
    return "+".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
