"""How much memory tensors take: torch's own allocator, observed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def peak_bytes(run: Callable[[], Any]) -> int:
    """The most bytes that were allocated on the CPU at one time within `run`, beyond those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    events = found.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
