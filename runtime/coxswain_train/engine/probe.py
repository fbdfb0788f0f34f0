"""The short probe: seconds of one matrix product, which has no sequences, no waits and no pauses.

The fastest of a few rounds counts. On CUDA events time it. On CPU the processor's clock does, and a process whose control group
has a quota is so much slower: the group lets short work run in whole periods, so a clock on the wall could miss it. What other
processes take of the cores makes no device slow: at the next step they take it of another one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import torch

from coxswain_link.cgroup import CoreShare
from coxswain_train.parallel.clock import DeviceClock

ROUNDS = 5
ROUNDS_ON_CPU = 16
"""More, for what other processes leave in caches: of five rounds the fastest was up to an eighth slower on a busy machine."""

MOST_SECONDS = 0.02
"""Of all rounds, where the process has its core: no round begins behind half of it."""

BUSY_SECONDS = 0.5
"""On the clock on the wall, of a process that does nothing but probe: five periods of a quota, of which the first may be cut
short. A probe by itself is over before a quota holds it back; an idle accelerator reaches its clocks within this time."""

_SIZES = {"cpu": 320, "cuda": 4096}  # rows and columns: 1 to 3 ms of a core, 0.2 to 1 ms of an accelerator


class Probe:
    """The matrices are made at the first call, which also warms up."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._clock = device, DeviceClock.of(device)
        self._matrix: torch.Tensor | None = None

    def seconds(self, share: float) -> float:
        """Of one product. `share`: how much of the last step its quota let the process run; 1 on CUDA."""
        return (self._by_events() if self._device.type == "cuda" else fastest(self._multiply)) / share

    def _multiply(self) -> None:
        if self._matrix is None:
            dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
            size = _SIZES[self._device.type]
            self._matrix = torch.ones(size, size, dtype=dtype, device=self._device)
            torch.mm(self._matrix, self._matrix)
        torch.mm(self._matrix, self._matrix)

    def _by_events(self) -> float:
        self._multiply()
        marks = [self._clock.mark()]
        for _ in range(ROUNDS):
            self._multiply()
            marks.append(self._clock.mark())
        return min(self._clock.between(a, b) for a, b in itertools.pairwise(marks))


def busy_seconds(probe: Probe, share: CoreShare | None, clock: Callable[[], float] = time.monotonic) -> float:
    """Of one product on a device that nothing else uses: the fastest within BUSY_SECONDS. `share`: on CPU, of the quota."""
    until, found = clock() + BUSY_SECONDS, list[float]()
    while not found or clock() < until:
        found.append(probe.seconds(1.0))
    if share is None:
        return min(found)
    share.step()
    return min(found) / share.value


def fastest(work: Callable[[], None], clock: Callable[[], float] = time.thread_time) -> float:
    """Seconds of the processor for one call, of a few."""
    work()
    began, found = clock(), list[float]()
    while len(found) < ROUNDS_ON_CPU and (not found or clock() - began < MOST_SECONDS / 2):
        start = clock()
        work()
        found.append(clock() - start)
    return min(found)
