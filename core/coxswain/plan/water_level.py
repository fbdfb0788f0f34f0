"""The level that work reaches when it is poured over replicas of unequal loads and speeds."""

from __future__ import annotations

import numpy as np

from coxswain.cost.model import Floats


def water_level(levels: Floats, speeds: Floats, work: float) -> float:
    """Returns when `work` seconds are done if every replica is busy from its level on."""
    order = np.argsort(levels, kind="stable")
    rate = np.cumsum(speeds[order])
    taken = np.cumsum(speeds[order] * levels[order])
    candidates = (work + taken) / rate  # the level if just the first k replicas take part
    enough = candidates >= levels[order]
    return float(candidates[enough].min()) if enough.any() else float(levels.max())
