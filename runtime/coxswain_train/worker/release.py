"""Frees what the world that a worker has left still holds: weights, graphs and communicators."""

from __future__ import annotations

import gc
import traceback
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor


def without_frames(error: BaseException) -> str:
    """The traceback of an error, which it loses with those behind it: their frames hold whatever the world computed with."""
    text, left = "".join(traceback.format_exception(error)), [error]
    while left:
        each = left.pop()
        each.__traceback__ = None
        left += [other for other in (each.__cause__, each.__context__) if other is not None and other.__traceback__]
    return text


def free_world() -> None:
    """Call it in the thread that has run the backwards, with no reference left to the world."""
    _drop_ready_nodes()
    gc.collect()


def _drop_ready_nodes() -> None:
    """Where a backward breaks off, torch keeps the nodes that were ready to run in a queue of the thread, and so the graph. It
    drops those that come before a node of a later backward: highest number first, and each thread counts from 0."""
    with ThreadPoolExecutor(1) as thread:
        oldest: Tensor = thread.submit(lambda: torch.zeros(1, requires_grad=True) * 1).result()
    oldest.backward()  # type: ignore[no-untyped-call]
