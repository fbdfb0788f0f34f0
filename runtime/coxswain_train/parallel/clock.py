"""When a device computes the plan's work and when it does not: wall time on CPU, recorded events on CUDA.

On CUDA a wait returns at once to the host; only the device waits. An event is recorded before and after each
operation and each wait, which costs no synchronisation; all are read once, at the end of the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

Mark = Any  # a moment: seconds of the host, or an event of the device


class Event(Protocol):
    """What is used of `torch.cuda.Event`."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, later: Any) -> float:
        """Milliseconds."""
        ...


@dataclass(slots=True)
class DeviceClock:
    """Marks moments of one device; `event` makes an event, None: the host computes by itself."""

    event: Callable[[], Event] | None = None
    waits: list[tuple[Mark, Mark]] = field(default_factory=list)  # what is not the plan's work, since `reset`

    @classmethod
    def of(cls, device: torch.device) -> DeviceClock:
        return cls(_cuda_event if device.type == "cuda" else None)

    def mark(self) -> Mark:
        if self.event is None:
            return time.perf_counter()
        event = self.event()
        event.record()
        return event

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait for peers, and around other work than the plan's within an operation."""
        begin = self.mark()
        yield
        self.waits.append((begin, self.mark()))

    def between(self, earlier: Mark, later: Mark) -> float:
        """Seconds. Waits until the device has come to the later one."""
        if self.event is None:
            seconds: float = later - earlier
            return seconds
        later.synchronize()
        milliseconds: float = earlier.elapsed_time(later)
        return milliseconds / 1000

    def waited(self, first: int, last: int) -> float:
        """Seconds of the waits with these numbers."""
        return sum((self.between(*wait) for wait in self.waits[first:last]), 0.0)

    def reset(self) -> None:
        self.waits.clear()


def _cuda_event() -> Event:
    event: Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event
