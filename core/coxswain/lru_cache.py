"""A cache bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """Keeps the latest entries within `budget`, in units of `size`, and at most `most` of them.

    The newest stays even if larger.
    """

    def __init__(self, budget: int | Callable[[], int], size: Callable[[V], int], most: int = 1 << 30) -> None:
        self._budget = budget if callable(budget) else lambda: budget
        self._size, self._most = size, most
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
        while (self.used > self._budget() or len(self._entries) > self._most) and len(self._entries) > 1:
            _, old = self._entries.popitem(last=False)
            self.used -= self._size(old)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    @property
    def has_room(self) -> bool:
        """Whether an entry can be added that drives no other out."""
        return self.used < self._budget() and len(self._entries) < self._most

    def __len__(self) -> int:
        return len(self._entries)
