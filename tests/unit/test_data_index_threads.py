"""Index objects are decoded by many threads of a loader at once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from coxswain.index import BlockIndex, decode, encode


@contextmanager
def threads_change_in_collections() -> Iterator[None]:
    """Collections are frequent, and run Python in which another thread may take over."""

    def work(*_: object) -> None:
        for _ in range(50):
            pass

    switch, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    gc.callbacks.append(work)
    try:
        yield
    finally:
        gc.callbacks.remove(work)
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(switch)


def test_indexes_are_decoded_from_many_threads_at_once() -> None:
    """numpy parses their headers by `ast`, whose depth CPython 3.11 counts for all threads together."""
    stored = encode(BlockIndex(at=np.arange(3), lengths=np.ones(3, np.uint32), rejected=np.arange(0)))
    with threads_change_in_collections(), ThreadPoolExecutor(16) as pool:
        assert all(found.at.size == 3 for found in pool.map(decode, [stored] * 400))
