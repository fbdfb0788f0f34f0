"""Judges layouts by placing the job's last steps on them, as its plans would. Pure; it takes CPU seconds.

The layout planner deals equal micro-batches, some four a replica: between layouts of few replicas their rounding may
count more than what the layouts differ in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from statistics import mean

import numpy as np
from msgspec.structs import replace as with_fields

from coxswain.config import JobConfig
from coxswain.cost.constants import Hardware
from coxswain.errors import Refused
from coxswain.ladder.values import Options, Speeds
from coxswain.layout import Layout
from coxswain_coordinator.planning.placers import FALL_BACK, is_slow, place_step
from coxswain_coordinator.steps import shares
from coxswain_coordinator.stragglers.speeds import replica_speeds

JUDGED = 4
"""Steps that are placed on each layout."""


def judged(
    job: JobConfig, vocabulary: int, options: Options, steps: Sequence[Sequence[int]], hardware: Hardware | None = None
) -> Options:
    """The options, with the mean seconds of these steps. Those on which the job's balance cannot place one are left out.

    `steps`: tokens of the sequences of each; none: the options stay as they are. `hardware`: the job's profile; None: as its
    policy says.
    """
    here = with_fields(job, model=with_fields(job.model, vocabulary=vocabulary))
    if is_slow(job):
        here = with_fields(here, parallelism=with_fields(here.parallelism, balance=FALL_BACK))
    seconds = partial(_seconds, here, hardware, options.speeds, steps)
    found = [(option, seconds(option.layout)) for option in options.layouts]
    stay = seconds(options.current) if isfinite(options.stay) else None
    if not steps or (stay is None and isfinite(options.stay)):
        return options
    layouts = tuple(replace(option, seconds=took) for option, took in found if took is not None)
    if stay is None:
        return replace(options, layouts=layouts)
    return replace(options, stay=stay, healthy=options.healthy * stay / options.stay, layouts=layouts)


def _seconds(
    job: JobConfig, hardware: Hardware | None, speeds: Speeds, steps: Sequence[Sequence[int]], layout: Layout
) -> float | None:
    """None: there is no step, or one that does not fit."""
    own = _speeds(job, layout, speeds)
    try:
        found = [place_step(list(step), layout, job, own, hardware).makespan_seconds for step in steps]
        return mean(found) if found else None
    except Refused:
        return None


def _speeds(job: JobConfig, layout: Layout, speeds: Speeds) -> tuple[float, ...]:
    """Of the replicas, as plans have them."""
    seats, parts = layout.ranks(), shares(layout, job.model)
    slowdowns = np.array([parts[seat.rank] / speeds.get(seat.device, 1.0) for seat in seats])
    return replica_speeds(slowdowns, seats, ())
