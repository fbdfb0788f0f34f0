"""Short packs first and last: a pipeline fills with short ones and drains with short ones, so it waits less than for full ones.

A ramp of a pipeline of p stages has packs of 1/p, 2/p, ... of a full one, rising at the front and falling at the back.
Together they have the work of p - 1 full packs, whatever stands between them.
"""

from __future__ import annotations

from functools import cache
from math import fsum

import numpy as np

from coxswain.cost.model import Floats
from coxswain.layout import pipelines_of
from coxswain.plan.pipelines.operations import ordered
from coxswain.plan.values import Task


def ramp(stages: int) -> Floats:
    """The packs of both ends, in parts of a full one."""
    return np.repeat(np.arange(1, stages) / stages, 2)


@cache
def ramp_wait(stages: int) -> float:
    """How many full packs a pipeline with ramps ends later than its work, by the walk: stages - 1 without ramps."""
    parts = ramp(stages)
    took: list[float] = [*parts[::2].tolist(), *[1.0] * stages, *parts[::-2].tolist()]
    tasks = [Task(i, "pack", (0,), (), seconds) for i, seconds in enumerate(took)]
    end: float = ordered(pipelines_of([stages]), tasks).seconds
    return end - fsum(took)
