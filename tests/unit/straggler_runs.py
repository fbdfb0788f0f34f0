"""Simulated worlds with a straggler, and what a report confirms of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.detect import ONSET, Run, World
from coxswain.stragglers.values import Report, State

FIRST = 3  # a rank that some tests slow down


def running(**world: Any) -> Run:
    """A run whose histories are known."""
    run = Run(World(**world))
    run.steps(ONSET)
    return run


def slowed(factor: float = 1.5, rank: int = FIRST, **world: Any) -> Run:
    run = running(**world)
    run.world.slow[rank] = factor
    return run


def confirmed(report: Report) -> list[int]:
    return [int(rank) for rank in np.flatnonzero(report.states == State.CONFIRMED)]
