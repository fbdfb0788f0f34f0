"""What detection reads of a step, the thresholds it decides by, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from coxswain.structs import prepare

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class State(IntEnum):
    """Only a confirmed device is a straggler to the planner."""

    NORMAL = 0
    SUSPECTED = 1
    CONFIRMED = 2


class Cause(IntEnum):
    """DEVICE and NODE are of suspected and confirmed ranks; the others explain time that no device is to blame for."""

    NONE = 0
    DEVICE = 1
    NODE = 2  # most devices of the node are slow alike
    LAST_STAGE = 3  # the loss layer is heavier than modelled
    LONG_SEQUENCES = 4  # the cost model's error grows with the length, on all ranks alike
    NETWORK = 5  # longer waits for other ranks, though none computes slower
    HOST = 6  # waits for data


class Place(msgspec.Struct, frozen=True):
    """A rank's seat and where its device is. (trainer, device) names the device across generations.

    `kind`: devices of one kind compute alike; peers have the same stage, tensor and kind.
    """

    replica: int
    stage: int
    tensor: int
    trainer: int
    device: int
    node: int
    kind: str = ""


@dataclass(frozen=True)
class Thresholds:
    """Factors are slowdowns; all else is in steps."""

    enter: float = 1.10
    leave: float = 1.05
    unknown: float = 1.25  # in place of `enter` in a device's first steps: healthy ones differ by so much for good
    allowed: float = (
        1.05  # healthy peers may be slower by so much for good: then a slower device is beside them less so
    )
    window: int = 3  # a window's value is the median of so many steps
    urgent: float = 2.0  # a window so slow makes a suspect by itself, after two slow steps
    alarm: float = 4.0  # so does a single step that is so slow,
    dear: float = 1.5  # or one at `enter` that lost so many seconds: the probe takes less
    usual: float = 1.5  # times the median of all ranks' longest sequences: a longer one may be why the step was slow
    k: int = 4  # so many of the last n windows at or above `enter` make a suspect
    n: int = 6
    learn: int = 16  # steps from which a device's own history is taken
    calm: int = 8  # so long below `leave` before a straggler is normal again; doubled each time
    most_calm: int = 512
    forget: int = 4096  # after so long without being a straggler, `calm` is short again
    rest: int = 16  # no suspicion for so long after a probe that found nothing; doubled each time
    most_rest: int = 1024
    controls: int = 3  # healthy ranks of the kind, probed beside suspects
    probe: float = 1.075  # the least slowdown of a probe that confirms; `enter` without a first probe to compare with
    part: float = (
        0.25  # of the slowdown by rates that a probe must find: other processes slow down steps, and hardly a probe
    )
    waits: float = 0.10  # waits, as a part of compute, that are worth a word

    @property
    def estimate(self) -> int:
        """Steps whose median is the reported slowdown."""
        return self.n - 1


@dataclass(frozen=True)
class Step:
    """One step's figures by rank; NaN: the rank reported none.

    `compute`: seconds, waits excluded. `work`: the plan's seconds at speed 1. `longest`: tokens of the longest
    sequence. `network`, `host`: seconds waited for other ranks and for data. `probes`: seconds of the fastest
    round of the short probe, so that a pause in one round does not count.
    """

    number: int
    compute: Floats
    work: Floats
    longest: Floats | None = None
    network: Floats | None = None
    host: Floats | None = None
    probes: Mapping[int, float] = field(default_factory=dict)


class Finding(msgspec.Struct, frozen=True):
    """`since`: the first step of the present state; of a suspect and a straggler, the first slow window's."""

    rank: int
    state: State
    slowdown: float
    since: int
    cause: Cause


@dataclass(frozen=True)
class Report:
    """By rank. `last_stage`: its measured seconds over planned ones, relative to the other stages; 1 where unknown."""

    step: int
    states: Ints
    slowdowns: Floats  # of confirmed ranks; of suspects the estimate so far; else 1
    since: Ints
    causes: Ints
    probes: tuple[int, ...]  # the ranks that should run the short probe before the next step
    last_stage: float

    @property
    def speeds(self) -> Floats:
        """For the planner: 1 / slowdown of confirmed ranks, 1 of all others."""
        return np.where(self.states == State.CONFIRMED, 1 / self.slowdowns, 1.0)

    def heeded(self, suspects: bool) -> Floats:
        """Slowdowns that plans go by: of confirmed ranks, and perhaps of `suspects` until they have probed; 1 of all others."""
        return np.where(self.states >= (State.SUSPECTED if suspects else State.CONFIRMED), self.slowdowns, 1.0)

    def finding(self, rank: int) -> Finding:
        state, cause = State(int(self.states[rank])), Cause(int(self.causes[rank]))
        return Finding(rank, state, float(self.slowdowns[rank]), int(self.since[rank]), cause)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of the ranks that are not normal, or whose time has an explanation."""
        return tuple(self.finding(int(rank)) for rank in np.flatnonzero(self.states + self.causes))


prepare(__name__)
