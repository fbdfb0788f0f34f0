"""Planned changes of the world that are wished for: another layout, another number of trainers. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from coxswain.layout import Device, Layout
from coxswain_coordinator.capacity import devices_of


@dataclass
class Changes:
    """`size`: trainers that the job shall have. `layout`: as last requested, as long as all of its devices are there."""

    size: int
    layout: Layout | None = None
    why: str = ""  # of a layout that no world has yet
    before: Layout | None = None  # the request in force before that one
    untried: bool = False  # no world of the requested layout has made a step
    former: int = 0  # trainers that hold state which is not saved: those that shall leave among them
    failed: Layout | None = None  # of the world that has just failed, where it may be one that cannot run
    stepless: int = 0  # worlds one after another of one layout that have begun and made no step
    present: Layout | None = None  # of the newest world

    def request(self, layout: Layout, why: str) -> None:
        self.before = self.before if self.why else self.layout
        self.layout, self.why = layout, why

    def entered(self, layout: Layout) -> None:
        """A world has this layout. Another one that was requested is dropped: the reason for it may be gone with its devices."""
        met = self.layout == layout
        self.untried = met and (self.untried or bool(self.why))
        self.stepless = 1 + (self.stepless if layout == self.present else 0)
        self.layout, self.why, self.former = self.layout if met else None, "", 0
        self.present, self.failed = layout, None

    def stepped(self) -> None:
        """The world has made a step."""
        self.untried, self.stepless = False, 0

    @property
    def forming(self) -> int:
        """Trainers of which the next world may have some."""
        return max(self.size, self.former)

    def hold(self, current: Layout) -> None:
        """The world of this layout has ended, and its state is in memory alone: trainers that shall leave do so after the next
        world has taken their state."""
        self.former = 1 + max(device.trainer for device in _working(current))

    def withdraw(self, current: Layout) -> None:
        """The world of this layout has failed. Before its change the reason for another layout may be gone with it. A layout in
        which the first world, or the second one in a row, fails before a step may be one that cannot run."""
        self.hold(current)
        self.failed = current if self.untried or self.stepless > 1 else None
        if self.why or self.failed:
            self.layout, self.before, self.why, self.untried = self.before, None, "", False

    def layout_on(self, devices: Collection[Device]) -> Layout | None:
        """The requested layout, if it is one of exactly these devices."""
        if self.layout is None or devices_of(self.layout) != set(devices):
            return None
        return self.layout

    def due(self, current: Layout, present: Collection[int], replaced: Collection[int] = ()) -> str:
        """Why the world with this layout must change; empty: it is as it shall be. `present`: indices of registered trainers;
        `replaced`: those whose pod the world does not know, which were on standby in it."""
        here = {device.trainer for device in devices_of(current)} - set(replaced)
        if self.why and self.layout != current:
            return self.why
        if leavers := sorted(index for index in here if index >= self.size):
            return f"{_trainers(leavers)} shall leave: the job has {self.size} trainers now"
        if joiners := sorted(index for index in present if index < self.size and index not in here):
            return f"{_trainers(joiners)} joined"
        return ""


def loses_state(current: Layout, after: Layout) -> bool:
    """Whether a device that works in this layout does not work in the next one: then its state is saved first."""
    return not _working(current) <= _working(after)


def _working(layout: Layout) -> set[Device]:
    return {seat.device for seat in layout.ranks()}


def _trainers(indices: Collection[int]) -> str:
    return ", ".join(f"trainer-{index}" for index in indices)
