"""Steps: plans, directives, digests and reports."""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from coxswain.membership.values import Sequence
from coxswain.plan.values import StageOperations, Task
from coxswain.structs import prepare


class Evaluation(msgspec.Struct, frozen=True):
    """Held-out sequences that the world evaluates after a step's update, forward only; or a member's part of it.

    Their places and tasks are numbered behind those of the step. Parts are cut as those of `StepPlan`.
    """

    sequences: tuple[Sequence, ...]
    tasks: tuple[Task, ...]
    operations: tuple[StageOperations, ...]
    labels: int  # valid tokens of all sequences
    first: int  # place of the first sequence: the number of those that the step trains on
    places: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Of the sequences that are here."""
        return sum(s.tokens for s in self.sequences)

    def sequence(self, place: int) -> Sequence:
        """As `StepPlan.sequence`."""
        return self.sequences[bisect_left(self.places, place) if self.places else place - self.first]


class StepPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Membership and placement of one step, or a member's part of it: all that constructors and workers need.

    A rank's part has the tasks of its replica, the operations of its stage and no sequences. A
    trainer's part has the tasks and sequences of its replicas, and of each task only their slices.
    """

    generation: int
    step: int
    sequences: tuple[Sequence, ...]
    tasks: tuple[Task, ...]
    operations: tuple[StageOperations, ...]
    labels: int  # valid tokens of the whole step
    digest: str  # of the four fields above and the evaluation in the whole plan: workers compare it
    makespan_seconds: float
    makespan_over_bound: float
    # Of each of `sequences` in the membership, ascending; empty: they are all of it, or none.
    places: tuple[int, ...] = ()
    evaluation: Evaluation | None = None  # None: no evaluation follows the step
    waves: int = 1  # of the whole plan: every rank passes a barrier between two, also without a task in them
    balance: str = ""  # the planner that placed the step; empty: sent by an earlier release
    speeds: tuple[float, ...] = ()  # of replicas, that the whole plan was made with; empty: all are 1, or it is a part

    @property
    def all_tasks(self) -> tuple[Task, ...]:
        """Those of the step, then those of its evaluation."""
        return (*self.tasks, *self.evaluation.tasks) if self.evaluation else self.tasks

    def trains(self, place: int) -> bool:
        """Whether the sequence at this place is the step's; else it is held out."""
        return self.evaluation is None or place < self.evaluation.first

    def sequence(self, place: int) -> Sequence:
        """The sequence at this place, of the step or of its evaluation. Only of a whole plan or a trainer's part."""
        if self.evaluation is not None and not self.trains(place):
            return self.evaluation.sequence(place)
        return self.sequences[bisect_left(self.places, place) if self.places else place]


class StepPlans(msgspec.Struct, frozen=True):
    """GET /v1/plans?from=K&wait=S&rank=R (or &trainer=NAME), ahead of time: parts of committed plans from step K on, at most 8.

    With neither a rank nor a trainer, whole plans: for tools.
    """

    plans: tuple[StepPlan, ...]


End = Literal["", "Completed", "Suspended", "Moved"]
"""How work in a world ends; empty: it does not. After `Moved` its workers wait for the next world."""


class StepDirective(msgspec.Struct, frozen=True):
    """GET /v1/steps?step=K&wait=S&rank=R (workers, when they begin step K): what to do at the boundary before step K, and the
    rank's part of its plan.

    The same for every rank but for `plan`: `checkpoint`: save the state as of now under step K; `end`: then leave; else run
    `plan`. With neither an end nor a plan: this coordinator has not caught up with a world that ran without one; work goes on
    as without it.
    """

    step: int
    checkpoint: bool
    end: End
    plan: StepPlan | None
    probe: bool | UnsetType = (
        UNSET  # True: this rank runs the short probe before the step, and reports it with the step
    )


class DeliveredDigests(msgspec.Struct, frozen=True):
    """POST /v1/served by a constructor: digests of the sequences whose first token it delivered."""

    generation: int
    step: int
    digests: tuple[tuple[int, str], ...]  # (position in the membership, hex SHA-256 of the whole sequence's token ids)


class TaskTiming(msgspec.Struct, frozen=True, array_like=True):
    """One measured operation: seconds since the worker began the step."""

    task: int
    kind: Literal["F", "B"]
    start: float
    stop: float
    waited: float = 0.0  # within it, for other ranks, or spent on gradients that leave beside it


class Totals(msgspec.Struct, frozen=True, array_like=True):
    """Sums over all ranks, known to each of them from its vote on a step: one report with them stands in for lost ranks."""

    loss_sum: float
    delivered: int  # the whole delivered digest


class StepReport(msgspec.Struct, frozen=True):
    """POST /v1/reports by each worker after the step's update."""

    generation: int
    step: int
    rank: int
    loss_sum: float | None  # this rank's tokens; JSON has no NaN or infinity: they arrive as None
    delivered: int  # this rank's part of the delivered digest, unsigned 64 bits
    gradient_norm: float | None
    learning_rate: float
    seconds: float  # whole step
    compute_seconds: float
    data_wait_seconds: float
    reduce_seconds: float
    timings: tuple[TaskTiming, ...] = ()
    ended: float = 0.0  # unix time on this rank's clock
    evaluation_loss_sum: float | None = None  # of this rank's held-out tokens; None: no evaluation, or not finite
    evaluation_seconds: float = 0.0  # not part of `seconds`
    probe_seconds: float | UnsetType = UNSET  # of the short probe, where the directive has asked for it
    totals: Totals | UnsetType = UNSET


prepare(__name__)
