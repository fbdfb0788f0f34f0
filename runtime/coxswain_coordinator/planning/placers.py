"""Places steps: one after another in this process, or in processes beside it where a balance may take long.

A plan that is late is not waited for, and a step that does not fit the job's balance ends no job: `FALL_BACK` places it.
Placements are recorded, with the name of what placed them, before anything of them is delivered: a restart reads them,
whatever was late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.cost.constants import Hardware
from coxswain.errors import Refused
from coxswain.layout import Layout
from coxswain.plan import planners
from coxswain.plan.step import plan_step
from coxswain.plan.values import Placement
from coxswain_coordinator.planning.solvers import Failed, Solvers

FALL_BACK = "Makespan"

Speeds = tuple[float, ...]
"""Of each replica; 1 is what the cost model expects. Empty: all are 1."""

Planner = Callable[[list[int], Layout, JobConfig, Speeds], Placement]
"""(sequence lengths, layout, job, speeds) -> placement of one step.

The job's model has its vocabulary filled in.
"""

IsLate = Callable[[], bool]
"""Whether plans that are not there yet come too late."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A step that the job's balance has not placed."""

    step: int
    balance: str
    seconds: float  # since it was asked for
    fault: str  # why there is no plan; empty: it is late


@dataclass(frozen=True, slots=True)
class Placed:
    placements: dict[int, Placement]
    missing: tuple[Missing, ...] = ()


Placer = Callable[[Mapping[int, list[int]], IsLate, Speeds], Placed]
"""Places steps, given the token counts of their sequences and the replicas' speeds."""


def place_step(
    lengths: list[int], layout: Layout, job: JobConfig, speeds: Speeds = (), hardware: Hardware | None = None
) -> Placement:
    """The planner of a job: its balance. `hardware`: the job's profile; None: as its policy says."""
    return plan_step(lengths, layout, job.parallelism, job.model, speeds or None, hardware)


def is_slow(job: JobConfig) -> bool:
    """Whether the job's balance may take long for one step."""
    return job.parallelism.balance.lower() in planners.SLOW


def in_turn(planner: Planner, layout: Layout, job: JobConfig) -> Placer:
    """Places one step after another, however long it takes. The fall-back places what does not fit the job's balance: rivals
    have groups of one size, or of powers of two, which may not hold a sequence that these replicas hold."""
    balance, fall_back = job.parallelism.balance, _fall_back(job)

    def place(steps: Mapping[int, list[int]], _: IsLate, speeds: Speeds) -> Placed:
        placements, missing = dict[int, Placement](), list[Missing]()
        for step, lengths in steps.items():
            try:
                placements[step] = planner(lengths, layout, job, speeds)
            except Refused as refused:
                if refused.reason != "CapacityLost":
                    raise
                placements[step] = planner(lengths, layout, fall_back, speeds)
                missing.append(Missing(step, balance, 0.0, refused.message))
        return Placed(placements, tuple(missing))

    return place


def _fall_back(job: JobConfig) -> JobConfig:
    return replace(job, parallelism=replace(job.parallelism, balance=FALL_BACK))


def in_processes(
    solvers: Solvers, planner: Planner, layout: Layout, job: JobConfig, observe: Callable[[float], None]
) -> Placer:
    """Places several steps at once; those that are late or fail by the fall-back. `observe` takes the seconds of each plan."""
    balance, fall_back = job.parallelism.balance, _fall_back(job)

    def place(steps: Mapping[int, list[int]], is_late: IsLate, speeds: Speeds) -> Placed:
        began = time.monotonic()
        found = solvers.place(steps, layout, job, is_late, speeds)
        seconds = time.monotonic() - began
        placements, missing = dict[int, Placement](), list[Missing]()
        for step, lengths in steps.items():
            answer = found.get(step, Failed(""))
            if isinstance(answer, Failed):
                missing.append(Missing(step, balance, seconds, answer.why))
                placements[step] = planner(lengths, layout, fall_back, speeds)
            else:
                observe(answer.seconds)
                placements[step] = answer.placement
        return Placed(placements, tuple(missing))

    return place
