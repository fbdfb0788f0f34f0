"""What a slow device costs a step besides its tasks: all ranks wait while it adds up gradients, updates, and passes weights on.

Links and hosts have a part in that work, so how much of a device's slowdown it shares is measured: the drag, from 0 to 1.
"""

from __future__ import annotations

from coxswain.ladder.values import Speeds, speed_in
from coxswain.layout import Layout


def drag_of(healthy: float, now: float, slowdown: float) -> float:
    """0: the work takes as long as without the slow device; 1: it takes `slowdown` times as long.

    `healthy`, `now`: seconds of the work without and with a device that is `slowdown` times slower.
    """
    if healthy <= 0 or slowdown <= 1:
        return 0.0
    return min(1.0, max(0.0, (now / healthy - 1) / (slowdown - 1)))


def slowest(layout: Layout, speeds: Speeds) -> float:
    """Slowdown of the slowest device that has a seat. Dead devices do not count: no world waits for them."""
    living = (speed_in(speeds, seat.device) for seat in layout.ranks())
    return 1 / min((speed for speed in living if speed > 0), default=1.0)


def dragged(drag: float, slowdown: float) -> float:
    """How many times as long the work takes as among healthy devices."""
    return 1 + drag * (slowdown - 1)
