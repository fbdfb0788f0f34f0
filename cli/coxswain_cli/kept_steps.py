"""Which lines of a run's steps count. One rule for the end of `cox run`, `cox status` and `cox report`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class OfStep(Protocol):
    @property
    def step(self) -> int: ...


L = TypeVar("L", bound=OfStep)


def kept_steps(lines: Iterable[L]) -> list[L]:
    """Of lines in the order of their writing those that count: one a step, in order.

    A run that resumes at a checkpoint discards the steps after it: a line of a step drops those of this step and of later ones.
    """
    kept: list[L] = []
    for line in lines:
        while kept and kept[-1].step >= line.step:
            kept.pop()
        kept.append(line)
    return kept
