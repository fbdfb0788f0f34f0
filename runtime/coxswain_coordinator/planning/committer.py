"""Commits memberships and placements ahead of time, a segment of steps at a time.

Blocking: runs in a thread.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import msgspec

from coxswain.config import JobConfig, PhaseConfig
from coxswain.errors import Refused
from coxswain.membership.stream import Stream
from coxswain.membership.values import Cursor, Membership, MixRecord
from coxswain.plan.values import Placement
from coxswain.planlog import Generation, MembershipSegment, PlacementSegment
from coxswain.wire import Evaluation, StepPlan
from coxswain_coordinator.planning.evaluations import check_forwards, evaluation_of, is_due
from coxswain_coordinator.planning.mix_history import MixHistory
from coxswain_coordinator.planning.plan_log import PlanLog

SEGMENT_STEPS = 8
"""Steps of a membership segment: segment s holds the steps [8 s, 8 s + 8)."""

LOOK_AHEAD_SECONDS = 30.0
_MOST_STEPS_AHEAD = 256

PlaceFn = Callable[[list[int]], Placement]
"""Places one step's sequences, given their token counts, in the current layout."""


def steps_ahead(step_seconds: float) -> int:
    """How far plans are committed ahead of the step that runs: max(8 steps, 30 s)."""
    if step_seconds <= 0:
        return SEGMENT_STEPS
    return min(max(SEGMENT_STEPS, math.ceil(LOOK_AHEAD_SECONDS / step_seconds)), _MOST_STEPS_AHEAD)


@dataclass(frozen=True, slots=True)
class Committed:
    """What one commit adds: plans of successive steps, and the cursor before and after each."""

    plans: tuple[StepPlan, ...]
    cursors: dict[int, Cursor]  # before that step
    end: int | None  # the first step that is not run because the data has ended; None: it has not
    next: int  # the first step that is not committed


@dataclass(frozen=True)
class Committer:
    """Extends the plan log for one generation."""

    job: JobConfig
    log: PlanLog
    mixes: MixHistory
    stream: Stream
    generation: Generation
    place: PlaceFn

    def commit(self, cursor: Cursor, stop: int) -> Committed:
        """Commits from the cursor's step to its segment's end; placements only below `stop`.

        Raises Stale when another coordinator has taken over, and Refused("StreamChanged") when the
        log holds another stream.
        """
        self.log.check_current(self.generation.generation)
        segment = self._membership(cursor)
        mine = [m for m in segment.memberships if m.step >= cursor.step]
        runnable = [m for m in mine if m.labels and m.step < stop]
        plans = self._placements(segment.segment, runnable)
        cursors = {m.step: m.cursor for m in mine} | {segment.after.step: segment.after}
        return Committed(plans, cursors, _end(mine), segment.after.step)

    def _membership(self, cursor: Cursor) -> MembershipSegment:
        """Reads and verifies the segment of the cursor's step, or computes and claims it."""
        number = cursor.step // SEGMENT_STEPS
        found = self.log.membership(number)
        if found is None:
            computed = self._compute(number, cursor, self.mixes.latest)
            found = self.log.claim_membership(computed)
            if found == computed:
                return found
        self._verify(found, cursor)
        return found

    def _verify(self, found: MembershipSegment, cursor: Cursor) -> None:
        """Recomputes the recorded memberships under the recorded mix: they must be equal."""
        again = self._compute(found.segment, found.memberships[0].cursor, self._recorded(found))
        here = {m.step: m.cursor for m in found.memberships} | {found.after.step: found.after}
        if again != found or here.get(cursor.step, cursor) != cursor:
            raise Refused(
                "StreamChanged",
                f"plan log segment {found.segment} (from step {found.memberships[0].step}) holds other sequences than the "
                "sources and the mix now give; restore them, or start a new run with a fresh checkpoint.uri",
            )

    def _recorded(self, found: MembershipSegment) -> MixRecord:
        """The mix record of a segment. A release without records added phases under the same number."""
        phases = msgspec.json.decode(found.phases, type=tuple[PhaseConfig, ...])
        return msgspec.structs.replace(self.mixes.record(found.mix), phases=phases)

    def _compute(self, number: int, cursor: Cursor, record: MixRecord) -> MembershipSegment:
        stream = self.stream.under(record)
        memberships: list[Membership] = []
        while cursor.step < (number + 1) * SEGMENT_STEPS and not (memberships and memberships[-1].exhausted):
            membership, cursor = stream.advance(cursor)
            memberships.append(membership)
        phases = msgspec.json.encode(record.phases).decode()
        return MembershipSegment(number, phases, tuple(memberships), cursor, record.number)

    def _placements(self, segment: int, memberships: list[Membership]) -> tuple[StepPlan, ...]:
        if not memberships:
            return ()
        placed = {m.step: self.place([s.tokens for s in m.sequences]) for m in memberships}
        by_step, evaluation = self._claimed(segment, placed, self._evaluation_placement(memberships))
        return tuple(self._plan(m, by_step[m.step], evaluation) for m in memberships)

    def _evaluation_placement(self, memberships: list[Membership]) -> Placement | None:
        if not any(is_due(self.job, m) for m in memberships):
            return None
        placement = self.place([s.tokens for s in self.stream.held_out.sequences])
        check_forwards(placement, self.generation.layout)
        return placement

    def _plan(self, membership: Membership, placement: Placement, evaluation: Placement | None) -> StepPlan:
        follows = None
        if evaluation is not None and is_due(self.job, membership):
            follows = evaluation_of(self.stream.held_out.sequences, evaluation, membership, len(placement.tasks))
        return step_plan(self.generation.generation, membership, placement, follows)

    def _claimed(
        self, segment: int, placed: dict[int, Placement], evaluation: Placement | None
    ) -> tuple[dict[int, Placement], Placement | None]:
        """The committed placements by step, and that of the evaluation, which is in the first part.

        They are these, or an earlier coordinator's, which may have begun earlier.
        """
        found: dict[int, Placement] = {}
        for part in count():
            left = [step for step in placed if step not in found]
            if not left:
                break
            placements, follows = tuple(placed[s] for s in left), None if part else evaluation
            record = PlacementSegment(self.generation.generation, segment, left[0], placements, follows)
            committed = self.log.claim_placement(record, part)
            found |= enumerate(committed.placements, committed.first_step)
            evaluation = evaluation if part else committed.evaluation
        return found, evaluation


def _end(memberships: list[Membership]) -> int | None:
    """The last step may be short; one without a label is not run at all."""
    last = memberships[-1]
    if not last.exhausted:
        return None
    return last.step + 1 if last.labels else last.step


def step_plan(
    generation: int, membership: Membership, placement: Placement, evaluation: Evaluation | None = None
) -> StepPlan:
    own = (membership.sequences, placement.tasks, placement.operations, membership.labels)
    content = own if evaluation is None else (*own, evaluation)
    return StepPlan(
        generation=generation,
        step=membership.step,
        sequences=membership.sequences,
        tasks=placement.tasks,
        operations=placement.operations,
        labels=membership.labels,
        digest=hashlib.sha256(msgspec.json.encode(content)).hexdigest(),
        makespan_seconds=placement.makespan_seconds,
        makespan_over_bound=placement.makespan_over_bound,
        evaluation=evaluation,
    )
