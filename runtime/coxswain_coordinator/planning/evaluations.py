"""Which steps an evaluation follows, and what it runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence as List

from msgspec import UNSET
from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.layout import Layout
from coxswain.membership.values import Membership, Sequence
from coxswain.plan.pipelines.replay import forwards, replay
from coxswain.plan.values import Operation, Placement, StageOperations, Task
from coxswain.wire import Evaluation


def is_due(job: JobConfig, step: int, data_end: int | None) -> bool:
    """After every everySteps steps, and after the last one: at the stop, or before the first step that has no data."""
    done = step + 1
    if not job.evaluation.tokens:
        return False
    return done % job.evaluation.every_steps == 0 or done in (job.total_steps, data_end)


def check_forwards(placement: Placement, layout: Layout) -> None:
    """Replays what an evaluation runs: without backwards the lists are others than those that the planner has checked."""
    if faults := replay(forwards(placement), layout, "F"):
        raise AssertionError(f"evaluation: {faults[0]}")


def evaluation_of(sequences: List[Sequence], placement: Placement, behind: Membership, tasks: int) -> Evaluation:
    """The evaluation behind a step of `tasks` tasks: forward operations only, without waves, numbered behind the step's own."""
    first = len(behind.sequences)
    return Evaluation(
        sequences=tuple(sequences),
        tasks=tuple(_renumbered(task, first, tasks) for task in placement.tasks),
        operations=tuple(_behind(stage, tasks) for stage in forwards(placement).operations),
        labels=sum(s.labels for s in sequences),
        first=first,
    )


def _renumbered(task: Task, sequences: int, tasks: int) -> Task:
    slices = tuple(replace(s, sequence=s.sequence + sequences) for s in task.slices)
    return replace(task, index=task.index + tasks, slices=slices, wave=UNSET)


def _behind(stage: StageOperations, tasks: int) -> StageOperations:
    return replace(stage, operations=tuple(Operation(o.kind, o.task + tasks) for o in stage.operations))
