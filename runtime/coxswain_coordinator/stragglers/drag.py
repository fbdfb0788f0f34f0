"""Learns from closed steps what they take besides tasks, with and without a slow device in the world. Pure."""

from __future__ import annotations

from statistics import median

from coxswain.ladder.drag import drag_of

_FEWEST, _MOST = 5, 16  # steps of a median


class Drag:
    """`value` stays across worlds: a layout without the slow device must not forget why. 0: unknown.

    It is known once five steps without and five with a slow device were seen in one world.
    """

    def __init__(self) -> None:
        self.value = 0.0
        self._slowdown = 1.0
        self._healthy = 0.0  # seconds; 0: not seen in this world
        self._recent: list[float] = []

    def enter(self) -> None:
        """A new world, maybe of other ranks: what it takes without a slow device is not known."""
        self._slowdown, self._healthy, self._recent = 1.0, 0.0, []

    def stepped(self, seconds: float, slowdown: float) -> None:
        """A step took so many seconds besides tasks; `slowdown` is that of the slowest device with a seat."""
        if slowdown != self._slowdown:
            self._slowdown, self._recent = slowdown, []
        self._recent = [*self._recent[1 - _MOST :], seconds]
        if self.beside and slowdown == 1:
            self._healthy = self.beside
        elif self.beside and self._healthy:
            self.value = drag_of(self._healthy, self.beside, slowdown)

    @property
    def beside(self) -> float:
        """Seconds of a step besides tasks as things are; 0: too few steps were so."""
        return median(self._recent) if len(self._recent) >= _FEWEST else 0.0
