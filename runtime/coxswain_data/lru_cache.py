"""A cache bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """Keeps the latest entries within `budget`, in units of `size`.

    The newest stays even if larger.
    """

    def __init__(self, budget: int, size: Callable[[V], int]) -> None:
        self._budget, self._size = budget, size
        self._entries: OrderedDict[K, V] = OrderedDict()
        self.used = 0

    def get(self, key: K, make: Callable[[], V]) -> V:
        if key not in self._entries:
            self._add(key, make())
        self._entries.move_to_end(key)
        return self._entries[key]

    def _add(self, key: K, value: V) -> None:
        self._entries[key] = value
        self.used += self._size(value)
        while self.used > self._budget and len(self._entries) > 1:
            _, old = self._entries.popitem(last=False)
            self.used -= self._size(old)

    def __len__(self) -> int:
        return len(self._entries)
