"""What was read a moment ago and need not be read again."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Values by key, each for `seconds` after it was set. Ask with `in` before each use: that forgets what is too old."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._known: dict[K, tuple[float, V]] = {}

    def __contains__(self, key: K) -> bool:
        now = self._clock()
        self._known = {k: known for k, known in self._known.items() if now - known[0] < self._seconds}
        return key in self._known

    def __getitem__(self, key: K) -> V:
        return self._known[key][1]

    def __setitem__(self, key: K, value: V) -> None:
        self._known[key] = self._clock(), value

    def clear(self) -> None:
        self._known.clear()
