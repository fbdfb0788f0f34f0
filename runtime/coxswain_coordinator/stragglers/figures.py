"""What detection reads of a closed step, from its plan and the ranks' reports. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from msgspec import UnsetType

from coxswain.layout import Layout, Seat
from coxswain.planlog import Generation
from coxswain.stragglers.values import Floats, Place, Step
from coxswain.wire import StepPlan, StepReport


@dataclass(frozen=True, slots=True)
class Measured:
    """A closed step: its seconds, those of them that are besides tasks, and the tokens of its sequences."""

    step: int
    seconds: float
    beside: float = 0.0
    lengths: tuple[int, ...] = ()


class Numbers(dict[str, int]):
    """A number for each name, in the order in which they were first asked for. None is given twice, even when forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self._unused = count()

    def __missing__(self, name: str) -> int:
        self[name] = next(self._unused)
        return self[name]

    def retain(self, names: Sequence[str]) -> None:
        """Forgets all others."""
        for name in self.keys() - set(names):
            del self[name]


def places_of(record: Generation, nodes: Sequence[str], pods: Numbers) -> tuple[Place, ...]:
    """Of each rank. Another pod has other devices, whatever its trainer's name is: pods are numbered across worlds,
    and those that this one lacks are forgotten.

    `nodes`: of each trainer; a trainer whose node is not known has one of its own.
    """
    pods.retain(record.trainers)
    homes = Numbers()
    trainers = [(pods[pod], homes[node or pod]) for pod, node in zip(record.trainers, nodes, strict=True)]
    return tuple(
        Place(seat.replica, seat.stage, seat.tensor, trainer, seat.device.device, node, _shape(record.layout, seat))
        for seat in record.layout.ranks()
        for trainer, node in [trainers[seat.device.trainer]]
    )


def _shape(layout: Layout, seat: Seat) -> str:
    """Only ranks with as many layers, shared by as many devices, are compared: what the cost model has wrong they share."""
    stage = layout.replicas[seat.replica].stages[seat.stage]
    return f"{stage.stop - stage.start}/{len(stage.devices)}"


def measured(plan: StepPlan, reports: Mapping[int, StepReport], seconds: float) -> Measured:
    """What the ladder reads of a closed step of so many seconds.

    Besides tasks is what the last operation of all ranks leaves: gradients are summed, weights updated and passed on, and a
    slow rank begins after the others. Without timings nothing is known: 0.
    """
    tasks = max((timing.stop for report in reports.values() for timing in report.timings), default=seconds)
    return Measured(
        plan.step, seconds, max(0.0, seconds - tasks), tuple(sequence.tokens for sequence in plan.sequences)
    )


def step_of(
    plan: StepPlan, reports: Mapping[int, StepReport], seats: Sequence[Seat], shares: Mapping[int, float]
) -> Step:
    """`shares`: by rank, its part of a task's planned seconds. A rank without a report has no figures."""
    work, longest = _by_replica(plan, max(seat.replica for seat in seats) + 1)
    replicas, ranks = [seat.replica for seat in seats], [reports.get(seat.rank) for seat in seats]
    return Step(
        number=plan.step,
        compute=np.array([r.compute_seconds if r else np.nan for r in ranks]),
        work=work[replicas] * np.array([shares.get(seat.rank, 1.0) for seat in seats]),
        longest=longest[replicas],
        network=np.array([sum(t.waited for t in r.timings) if r else np.nan for r in ranks]),
        host=np.array([r.data_wait_seconds if r else np.nan for r in ranks]),
        probes={r.rank: r.probe_seconds for r in ranks if r and not isinstance(r.probe_seconds, UnsetType)},
    )


def _by_replica(plan: StepPlan, replicas: int) -> tuple[Floats, Floats]:
    """Seconds of work at speed 1, and tokens of the longest sequence.

    A task's planned seconds are those of its slowest member: what all of them compute at speed 1, over that speed.
    """
    work, longest = np.zeros(replicas), np.full(replicas, np.nan)
    for task in plan.tasks:
        slowest = min(plan.speeds[r] for r in task.replicas) if plan.speeds else 1.0
        tokens = max(plan.sequence(s.sequence).tokens for s in task.slices)
        for replica in task.replicas:
            work[replica] += task.seconds * slowest
            longest[replica] = np.fmax(longest[replica], tokens)
    return work, longest
