"""Hears what agents probe of slow devices on standby, and has the ladder plan with those again that are well."""

from __future__ import annotations

import logging
import math

from coxswain.layout import Device
from coxswain.wire import ProbesWanted, StandbyProbes
from coxswain_coordinator.capacity import device_name
from coxswain_coordinator.stragglers.ladder import Ladder
from coxswain_coordinator.stragglers.watch import RecordEvent, StragglerWatch
from coxswain_coordinator.stragglers.words import returned

log = logging.getLogger(__name__)


class StandbyProbing:
    """`watch` knows what a probe took while the device was well, `ladder` which devices wait."""

    def __init__(self, watch: StragglerWatch, ladder: Ladder, record_event: RecordEvent) -> None:
        self._watch, self._ladder, self._record_event = watch, ladder, record_event

    def wanted(self, trainer: str) -> ProbesWanted:
        """The devices of this trainer that are to be probed next."""
        return ProbesWanted(tuple(sorted(self._waiting(trainer))))

    def _waiting(self, trainer: str) -> dict[int, Device]:
        return {d.device: d for d in self._ladder.aside.waiting if f"trainer-{d.trainer}" == trainer}

    def hear(self, found: StandbyProbes) -> None:
        """Only devices that wait count: others work, or were never slow."""
        waiting = self._waiting(found.trainer)
        for number, seconds in found.seconds:
            if number in waiting:
                self._judge(waiting[number], seconds)

    def _judge(self, device: Device, seconds: float) -> None:
        """Without anything to compare with a probe says nothing."""
        slowdown = self._watch.slowdown_aside(device, seconds)
        if math.isnan(slowdown):
            return
        name, waiting = device_name(device), self._ladder.aside.waiting[device]
        log.info("%s on standby: its probe takes %.2f x as long as one of a healthy device", name, slowdown)
        if self._ladder.probed(device, slowdown):
            self._record_event("StragglerRecovered", returned(name, waiting.dwell), False)
