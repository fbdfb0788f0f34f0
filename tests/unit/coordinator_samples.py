"""Made-up trainers, plans, reports and sessions of a coordinator."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from coxswain.config import ReplicaShape, StageShape
from coxswain.digests import STREAM_SEED
from coxswain.membership.stream import initial_cursor
from coxswain.membership.values import Sequence
from coxswain.plan.values import Slice, Task
from coxswain.wire import Register, StepPlan, StepReport
from coxswain_coordinator.planning.committer import Committed
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.world.formation import at_checkpoint, next_generation, world_of


def agents(count: int, devices: int = 1) -> list[Register]:
    return [Register("trainer", f"trainer-{i}", f"pod-{i}", "one", "h", 0, devices) for i in range(count)]


def plan(step: int, labels: int = 10) -> StepPlan:
    sequences = (Sequence("code", 0, 3, 0, 6, 6), Sequence("docs", 0, 1, 0, 5, 6))
    tasks = (
        Task(0, "ring", (0, 1), (Slice(0, 0, 0, 3), Slice(1, 0, 3, 6)), 2.0),
        Task(1, "pack", (1,), (Slice(1, 1, 0, 5),), 1.0),
    )
    return StepPlan(1, step, sequences, tasks, (), labels, "digest", 3.0, 1.1)


def report(rank: int, step: int = 0, **changes) -> StepReport:
    found = StepReport(1, step, rank, 10.0 + rank, 7, 1.5, 1e-3, 4.0, 3.0, 0.2, 0.1)
    return replace(found, **changes)


def session(job, trainers: int = 2, manifest=None) -> Session:
    record = next_generation(job, 1, "me", agents(trainers), (), at_checkpoint(job, manifest))
    return Session(job, record, world_of(record, agents(trainers), 320), initial_cursor(job.mix), STREAM_SEED)


def committed(*steps: int, end: int | None = None, **changes: Any) -> Committed:
    """`changes`: of each plan."""
    return Committed(tuple(replace(plan(s), **changes) for s in steps), {}, end, steps[-1] + 1)


SHAPES = (ReplicaShape((StageShape(1, 2), StageShape(1))), ReplicaShape((StageShape(2),)))


def replace_cursors(found: Committed, s: Session) -> Committed:
    return Committed(found.plans, dict.fromkeys(range(8), s.cursors[0]), found.end, found.next)
