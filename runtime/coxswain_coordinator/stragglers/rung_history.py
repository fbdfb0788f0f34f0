"""The rungs that were taken, and what the layout in force was decided for. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coxswain.ladder.values import LEAST_GAIN, Change, Speeds
from coxswain.layout import Device, Layout
from coxswain.planlog import Generation
from coxswain_coordinator.stragglers.home import Home

_CHANGES = 64  # that are remembered


@dataclass(frozen=True, slots=True)
class Expected:
    """A change that was requested. `speeds`: those that it was decided for. `before`, `gain`: seconds of a step."""

    layout: Layout
    speeds: Speeds
    because: str
    before: float
    gain: float


class RungHistory:
    """`changes`: the latest. `expected`: the change whose gain is not measured yet. `planned`: the speeds that the layout in
    force was decided for."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.expected: Expected | None = None
        self.planned: Speeds = {}
        self.least_gain = LEAST_GAIN  # 0 in a layout that was formed after a loss, without a search

    def enter(self, before: Generation | None, home: Home, unknown: Speeds) -> None:
        """A new world. `unknown`: speeds of devices that an earlier coordinator has set aside."""
        layout = home.record.layout
        if before:
            self._forget_unformed(before.layout, layout)
        if before and before.layout == layout:
            self.expected = None
            return
        made = self.expected if self.expected and self.expected.layout == layout else None
        self.expected, self.planned = made, made.speeds if made else unknown
        self.least_gain = 0.0 if home.lost and not made else LEAST_GAIN

    def _forget_unformed(self, before: Layout, layout: Layout) -> None:
        """A change that was requested last, and whose world was lost before it, has cost nothing."""
        if self.expected and self.expected.layout not in (before, layout):
            del self.changes[-1:]

    def rewind(self, step: int) -> None:
        """Steps from this one on are done again."""
        self.changes = [replace(change, step=min(change.step, step)) for change in self.changes]

    def add(self, change: Change) -> None:
        self.changes = [*self.changes[1 - _CHANGES :], change]

    def recovered(self, device: Device, speed: float) -> None:
        """A device that had this speed is well, and is to be decided for, also where no decision has chosen the layout."""
        self.planned = {device: speed, **self.planned}
