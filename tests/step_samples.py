"""A step of one sequence for one replica: its plan, and what a constructor hands over for it."""

from __future__ import annotations

import numpy as np

from coxswain.membership.values import Sequence
from coxswain.plan.values import Operation, Slice, StageOperations, Task
from coxswain.wire import StepPlan
from coxswain_link.step_buffer import NO_LABEL, StepArrays, StepSlice

LENGTH = 12


def plan(step: int, digest: int | None = None) -> StepPlan:
    """`digest`: a number that distinguishes plans of the same step."""
    task = Task(index=0, kind="pack", replicas=(0,), slices=(Slice(0, 0, 0, LENGTH),))
    return StepPlan(
        generation=1,
        step=step,
        sequences=(Sequence("code", 0, step, 0, LENGTH, LENGTH),),
        tasks=(task,),
        operations=(StageOperations(0, 0, (Operation("F", 0), Operation("B", 0))),),
        labels=LENGTH - 1,
        digest=f"sha256:{step if digest is None else digest:064x}",
        makespan_seconds=1.0,
        makespan_over_bound=1.0,
    )


def arrays(step: int, token: int = 7, start: int = 0) -> StepArrays:
    tokens = np.full(LENGTH, token, dtype=np.int32)
    labels = np.append(tokens[1:], NO_LABEL).astype(np.int32)
    slices = (StepSlice(0, 0, start, start + LENGTH, 0),)
    return StepArrays(1, step, tokens, labels, np.arange(LENGTH, dtype=np.int32), slices)
