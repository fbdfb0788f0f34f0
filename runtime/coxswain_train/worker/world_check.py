"""What each wait of a worker looks at between its attempts: whether its world is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coxswain.errors import Stale


@dataclass(frozen=True, slots=True)
class WorldCheck:
    """Raises Stale once the world of this generation is over.

    The order to leave cuts every call under way, again and again until the rank leaves: a wait that repeats its call has no
    other end.
    """

    generation: int
    is_aborted: Callable[[], bool]

    def __call__(self) -> None:
        if self.is_aborted():
            raise Stale(f"generation {self.generation} is over")
