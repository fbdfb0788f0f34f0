"""Planners that stand in for one which solves an integer program. Processes import them by name, so they are functions.

Their notes are files in the folder that is the name of the job.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from itertools import cycle
from pathlib import Path

from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.errors import Refused
from coxswain.layout import Layout
from coxswain.plan.planners import BALANCES
from coxswain.plan.values import Placement
from coxswain_coordinator.planning.placers import Planner, Speeds, place_step
from coxswain_coordinator.planning.solvers import Solvers

HANGS, KILLED, REFUSES, RAISES, HEAVY = 101, 102, 103, 104, 105  # tokens of a step's first sequence


def slow(lengths: list[int], layout: Layout, job: JobConfig, _: Speeds = ()) -> Placement:
    """Places by Naive under its own name; what the first sequence asks for comes before."""
    if job.parallelism.balance != "FlexSP":
        return place_step(lengths, layout, job)
    act(lengths[0], Path(job.name))
    named = replace(job, parallelism=replace(job.parallelism, balance="Naive"))
    return replace(place_step(lengths, layout, named), balance="slow")


def act(what: int, folder: Path) -> None:
    if what == HANGS:
        (folder / "hangs.new").write_text(str(os.getpid()))
        (folder / "hangs.new").rename(folder / "hangs")
        threading.Event().wait()
    if what == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == REFUSES:
        raise Refused("CapacityLost", "too long")
    if what == RAISES:
        raise ValueError("no solution")
    if what == HEAVY:
        heavy = {"torch", "aiohttp", "pyarrow", "prometheus_client"}
        raise ValueError(f"imported: {sorted(heavy & sys.modules.keys())}")


def together(lengths: list[int], layout: Layout, job: JobConfig, _: Speeds = ()) -> Placement:
    """Ends once two steps are being placed."""
    folder = Path(job.name)
    (folder / f"began-{lengths[0]}").touch()
    while len(list(folder.glob("began-*"))) < 2:
        time.sleep(0.01)
    return place_step(lengths, layout, replace(job, parallelism=replace(job.parallelism, balance="Naive")))


def later(lengths: list[int], layout: Layout, job: JobConfig, _: Speeds = ()) -> Placement:
    """The ninth step and those after it wait for a file."""
    folder = Path(job.name)
    began = len(list(folder.glob("planned-*")))
    (folder / f"planned-{os.getpid()}-{time.monotonic_ns()}").touch()
    while began >= 8 and not (folder / "go").exists():
        time.sleep(0.01)
    return replace(
        place_step(lengths, layout, replace(job, parallelism=replace(job.parallelism, balance="Naive"))), balance="slow"
    )


def one_after_another() -> Planner:
    """Places each step by the next of all balances."""
    balances = cycle(BALANCES)

    def place(lengths: list[int], layout: Layout, job: JobConfig, _: Speeds = ()) -> Placement:
        return place_step(lengths, layout, replace(job, parallelism=replace(job.parallelism, balance=next(balances))))

    return place


def coordinate(folder: Path) -> None:
    """A process that waits for a planner for ever."""
    from tests.unit.test_coordinator_solvers import LAYOUT, slow_job

    Solvers(slow, 1).place({0: [HANGS]}, LAYOUT, slow_job(folder), lambda: False)
