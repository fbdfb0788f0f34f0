"""The slow devices that a running job has on standby, as the ladder counts them. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from coxswain.config import JobConfig
from coxswain.ladder.standby import LEAVE, Standby, Waiting
from coxswain.ladder.values import Speeds
from coxswain.layout import Device, Layout, layout_for
from coxswain.planlog import Generation
from coxswain_coordinator.capacity import devices_of

UNKNOWN = 0.01
"""The speed of a device of which nothing is known but that it was set aside: no layout gains by taking it in."""

Heard = Literal["Waits", "Well", "Slow"]
"""After a probe: the device waits on; it is well for long enough; it is slow, of which nothing was known."""


def set_aside(job: JobConfig, layout: Layout) -> frozenset[Device]:
    """Devices on standby that would work in the job's own layout: an earlier coordinator has set them aside."""
    own = layout_for(devices_of(layout), job.model.layers, job.parallelism)
    return frozenset(layout.standby) - frozenset(own.standby)


class DevicesAside:
    """`unknown`: set aside by an earlier coordinator. No layout takes them in before probes have said how they are."""

    def __init__(self) -> None:
        self._standby = Standby()
        self._unknown: frozenset[Device] = frozenset()

    @property
    def waiting(self) -> dict[Device, Waiting]:
        return self._standby.waiting

    @property
    def unknown(self) -> Speeds:
        return dict.fromkeys(sorted(self._unknown), UNKNOWN)

    def enter(self, job: JobConfig, layout: Layout, kept: Collection[Device] | None) -> None:
        """A world begins. `kept`: devices of pods that were in the one before; None: this coordinator knows of none before."""
        if kept is None:
            self._unknown = set_aside(job, layout)
        else:
            self._unknown &= frozenset(kept) & frozenset(layout.standby)
            self._standby.keep(kept)

    def settle(self, speeds: Speeds, record: Generation) -> None:
        """`speeds`: of slow devices and of unknown ones."""
        self._standby.settle(speeds, record.layout.standby, record.first_step)

    def probed(self, device: Device, slowdown: float) -> Heard:
        """What a probe says of a device that waits."""
        well, unknown = self._standby.probed(device, slowdown), device in self._unknown
        if well or slowdown > LEAVE:
            self._unknown -= {device}
        return "Well" if well else "Slow" if unknown and slowdown > LEAVE else "Waits"
