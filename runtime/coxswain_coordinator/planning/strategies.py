"""Settles the layout of `parallelism: {mode: Auto}`: chosen once for the trainers' devices, and kept in the plan log.

Blocking: runs in a thread.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from coxswain.config import JobConfig
from coxswain.cost.constants import Hardware
from coxswain.layout import Layout
from coxswain.membership.stream import Stream
from coxswain.membership.values import Cursor
from coxswain.plan.strategy.choose import LEAST_TOKENS, choose
from coxswain.plan.strategy.kinds import still_fits
from coxswain.plan.strategy.machine import asked, machine_of
from coxswain.plan.strategy.values import STEPS, Machine
from coxswain.planlog import StrategyRecord
from coxswain_coordinator.capacity import devices_of
from coxswain_coordinator.planning.plan_log import PlanLog


class Strategies:
    """The records of a plan log; the latest is in force while devices and job ask the same."""

    def __init__(self, log: PlanLog, author: str) -> None:
        self._log, self._author = log, author

    def settle(
        self, job: JobConfig, vocabulary: int, devices: tuple[int, ...], stream: Stream, cursor: Cursor,
        nodes: tuple[str, ...] = (), profile: Hardware | None = None,
    ) -> StrategyRecord:  # fmt: skip
        """The record for these devices: the latest if it holds, else a new one. `devices`, `nodes`: of each trainer. `profile`:
        the job's, if it has one.

        Chooses by the first steps from the cursor. Refused ("NoStrategy") where no layout fits.
        """
        machine, balance = _machine(job, vocabulary, devices, nodes, profile), job.parallelism.balance
        what, latest = asked(machine, job.batch, balance), self._log.last_strategy()
        same = latest is not None and (latest.devices, latest.asked) == (devices, what)
        if latest is not None and same and still_fits(machine, latest.strategy.chosen):
            return latest
        found = choose(machine, upcoming(stream, cursor), balance)
        number = latest.number + 1 if latest else 0
        claimed = self._log.claim_strategy(StrategyRecord(number, self._author, devices, what, found))
        if (claimed.devices, claimed.asked) == (devices, what):
            return claimed
        return self.settle(
            job, vocabulary, devices, stream, cursor, nodes, profile
        )  # another coordinator chose for other devices

    def behind(self, layout: Layout) -> StrategyRecord | None:
        """The newest record for the devices of a world's layout; None: none. Chooses nothing."""
        mine = Counter(device.trainer for device in devices_of(layout))
        devices = tuple(mine[trainer] for trainer in sorted(mine))
        return next((record for record in self._log.strategies() if record.devices == devices), None)


def _machine(
    job: JobConfig, vocabulary: int, devices: tuple[int, ...], nodes: tuple[str, ...], profile: Hardware | None
) -> Machine:
    model, muon = replace(job.model, vocabulary=vocabulary), job.optimizer.kind == "Muon"
    return machine_of(
        model, job.parallelism, job.batch, devices, whole_matrices=muon, copies=job.copies, least=LEAST_TOKENS,
        nodes=nodes, profile=profile,
    )  # fmt: skip


def upcoming(stream: Stream, cursor: Cursor) -> list[NDArray[np.int64]]:
    """Lengths of the sequences of the next steps; one longest sequence where the data has ended."""
    steps = list[NDArray[np.int64]]()
    for _ in range(STEPS):
        membership, cursor = stream.advance(cursor)
        if membership.sequences:
            steps.append(np.array([s.tokens for s in membership.sequences], dtype=np.int64))
        if membership.exhausted:
            break
    return steps or [np.array([stream.batch.max_sequence_tokens], dtype=np.int64)]
