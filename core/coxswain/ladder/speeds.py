"""Slowdowns rounded for planning, so that speeds change rarely and plans of equal situations are found again."""

from __future__ import annotations

from collections.abc import Mapping
from math import log

from coxswain.layout import Device

STEP = 1.05
"""Speeds are 1 over a power of it."""

_LEAST = 1e-6  # 0 is the speed of a dead device

_KEPT = 0.75  # steps that a slowdown may be from the power in force


def bucket(slowdown: float, before: int) -> int:
    """The power of STEP next to a slowdown; that of before, as long as it is near enough."""
    if slowdown <= 1.0:
        return 0
    exact = log(slowdown) / log(STEP)
    return before if before and abs(exact - before) <= _KEPT else max(1, round(exact))


def speed_of(power: int) -> float:
    return max(_LEAST, round(STEP**-power, 6))


def changed(before: Mapping[Device, int], now: Mapping[Device, int]) -> set[Device]:
    """Devices that are slower than before, or well again: what another layout saves counts from now on. Powers of slow ones.

    Where a device is slow and has become faster, what it has cost since its onset is at least what its present speed says:
    that counts on.
    """
    slower = {device for device, power in now.items() if power > before.get(device, 0)}
    return slower | (before.keys() - now.keys())
