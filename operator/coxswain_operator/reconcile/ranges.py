"""Sets of members as short text: `coordinator,loader:0-1,trainer:0-4999`, so that a status of thousands of pods stays small."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import groupby

from coxswain_operator.views import member_name


def encode(members: Iterable[str]) -> str:
    """Sorted and without repetitions, so that equal sets are equal text."""
    indexes: dict[str, set[int]] = {}
    for member in members:
        role, _, digits = member.partition("-")
        indexes.setdefault(role, set()).add(int(digits or 0))
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
        start = int(first or 0)
        yield from (member_name(role, i) for i in range(start, int(last or start) + 1))


def _runs(indexes: list[int]) -> str:
    """`0-3+5+7-9` of sorted indexes: within a run, index and place differ by the same number."""
    groups = groupby(enumerate(indexes), lambda pair: pair[1] - pair[0])
    runs = ([index for _, index in group] for _, group in groups)
    return "+".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
