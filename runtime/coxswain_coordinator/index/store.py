"""Token counts of indexed blocks, read from the store when membership needs them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from coxswain.errors import Refused
from coxswain.index import TORN, BlockEntry, decode_lengths, object_key
from coxswain.lru_cache import LRUCache
from coxswain_link.spool import Spool
from coxswain_link.store import REQUESTS_AT_ONCE, Store

_FILES = 1 / 2  # of those that the process may open


class IndexStore:
    """Reads index objects and keeps the latest on local disk: a window of blocks of every source is in use at a time."""

    def __init__(self, store: Store, spool: Spool | None = None) -> None:
        self._store, self._spool = store, (held := spool or Spool())
        self._kept: LRUCache[str, NDArray[np.uint32]] = LRUCache(
            lambda: held.budget, lambda lengths: lengths.nbytes, held.most(_FILES)
        )

    def lengths(self, block: BlockEntry) -> NDArray[np.uint32]:
        return self._kept.get(block.key, lambda: self._hold(block))

    def fetch(self, blocks: Iterable[BlockEntry]) -> None:
        """Reads side by side what is not kept, while there is room: the rest is read when it is asked for."""
        wanted = list({b.key: b for b in blocks if b.key not in self._kept}.values())
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            for start in range(0, len(wanted), REQUESTS_AT_ONCE):
                if not self._kept.has_room:
                    return
                some = wanted[start : start + REQUESTS_AT_ONCE]
                for block, lengths in zip(some, pool.map(self._hold, some), strict=True):
                    self._kept.get(block.key, lambda lengths=lengths: lengths)  # type: ignore[misc]

    def _hold(self, block: BlockEntry) -> NDArray[np.uint32]:
        return self._spool.hold_array(self.read(block))

    def read(self, block: BlockEntry) -> NDArray[np.uint32]:
        """Keeps nothing. Thread-safe."""
        key = object_key(block.key)
        try:
            lengths = decode_lengths(self._store.get(key))
        except TORN as error:
            raise _corrupt(key, f"cannot be read ({error})") from error
        if len(lengths) != block.samples:
            raise _corrupt(key, f"has {len(lengths)} samples, its loader reported {block.samples}")
        return lengths


def _corrupt(key: str, how: str) -> Refused:
    return Refused("IndexCorrupt", f"{key} {how}; delete the object to have it indexed again")
