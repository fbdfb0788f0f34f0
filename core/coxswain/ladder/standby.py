"""Devices on standby: probed sparsely, and back at speed 1 after a dwell that doubles with each return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coxswain.layout import Device

EVERY = 4  # steps between two probes of a device
LEAVE = 1.05  # a probe at most so many times slower than the device's first one is healthy
DWELL = 2  # healthy probes in a row until the device is back; doubled with each return
MOST_DWELL = 64


@dataclass(frozen=True)
class Waiting:
    """A device on standby since `since`. `healthy`: probes in a row that found nothing; `returns`: how often it was back."""

    since: int
    speed: float
    healthy: int = 0
    returns: int = 0

    @property
    def dwell(self) -> int:
        return min(MOST_DWELL, DWELL << self.returns)

    @property
    def back(self) -> bool:
        return self.healthy >= self.dwell

    def probed(self, slowdown: float) -> Waiting:
        """After a probe: its seconds over those of the device's first one, less what its peers share."""
        if slowdown <= LEAVE:
            return replace(self, healthy=self.healthy + 1)
        return replace(self, healthy=0, speed=round(1 / slowdown, 2))


def due(waiting: Mapping[Device, Waiting], step: int) -> tuple[Device, ...]:
    """The devices to probe before step `step`: each every EVERY steps, not all in the same one."""
    return tuple(sorted(d for d, w in waiting.items() if (step - w.since) % EVERY == EVERY - 1))
