"""Devices on standby: probed sparsely, and back at speed 1 after a dwell that doubles with each return."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from coxswain.ladder.values import Speeds
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


class Standby:
    """`waiting`: the slow devices on standby. A device that was never slow waits for nothing."""

    def __init__(self) -> None:
        self.waiting: dict[Device, Waiting] = {}
        self._returns: dict[Device, int] = {}

    def settle(self, speeds: Speeds, standby: Collection[Device], step: int) -> None:
        """A layout begins. `speeds`: of the slow devices; those that stay on standby keep what their probes have said."""
        self.waiting = {
            device: replace(self.waiting.get(device) or self._new(device, step), speed=speed)
            for device, speed in speeds.items()
            if device in standby
        }

    def _new(self, device: Device, step: int) -> Waiting:
        return Waiting(step, 0.0, returns=self._returns.get(device, 0))

    def probed(self, device: Device, slowdown: float) -> bool:
        """What a probe of a device says that waits. True: it is back, and waits no more."""
        waiting = self.waiting[device] = self.waiting[device].probed(slowdown)
        if waiting.back:
            self._returns[device] = waiting.returns + 1
            del self.waiting[device]
        return waiting.back

    def keep(self, devices: Collection[Device]) -> None:
        """Forgets all other devices: those of another pod are others."""
        self.waiting = {device: waiting for device, waiting in self.waiting.items() if device in devices}
        self._returns = {device: returns for device, returns in self._returns.items() if device in devices}


def due(waiting: Mapping[Device, Waiting], step: int) -> tuple[Device, ...]:
    """The devices to probe before step `step`: each every EVERY steps, not all in the same one."""
    return tuple(sorted(d for d, w in waiting.items() if (step - w.since) % EVERY == EVERY - 1))
