"""Commits memberships and placements ahead of time, a segment of steps at a time.

Blocking: runs in a thread.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from coxswain.config import JobConfig, PhaseConfig
from coxswain.errors import Refused
from coxswain.ladder.lead import PLANNED
from coxswain.membership.stream import Stream
from coxswain.membership.values import Cursor, Membership, MixRecord
from coxswain.plan.values import Placement
from coxswain.planlog import Generation, MembershipSegment, PlacementSegment
from coxswain.wire import Evaluation, StepPlan
from coxswain_coordinator.planning.evaluations import check_forwards, evaluation_of, is_due
from coxswain_coordinator.planning.mix_history import MixHistory
from coxswain_coordinator.planning.placers import IsLate, Missing, Placed, Placer, Speeds
from coxswain_coordinator.planning.plan_log import PlanLog

SEGMENT_STEPS = 8
"""Steps of a membership segment: segment s holds the steps [8 s, 8 s + 8)."""

LOOK_AHEAD_SECONDS = 30.0
_MOST_STEPS_AHEAD = 256

_EVALUATION = -1  # among the steps to be placed: the held-out sequences

_LEAST_PATIENCE = 1.0


def steps_ahead(step_seconds: float, plans_around: bool = False) -> int:
    """How far plans are committed ahead of the step that runs: max(8 steps, 30 s), or the short lead."""
    if plans_around:
        return PLANNED
    if step_seconds <= 0:
        return SEGMENT_STEPS
    return min(max(SEGMENT_STEPS, math.ceil(LOOK_AHEAD_SECONDS / step_seconds)), _MOST_STEPS_AHEAD)


def patience(in_hand: int, step_seconds: float, started: bool) -> float:
    """Seconds that planners may take for the next segment, with so many steps committed that have not begun.

    It is half the time in which these run. Before the first step of a world nothing waits but its start.
    """
    return max(_LEAST_PATIENCE, in_hand * step_seconds / 2) if started else LOOK_AHEAD_SECONDS


@dataclass(frozen=True, slots=True)
class Committed:
    """What one commit adds: plans of successive steps, and the cursor before and after each."""

    plans: tuple[StepPlan, ...]
    cursors: dict[int, Cursor]  # before that step
    end: int | None  # the first step that is not run because the data has ended; None: it has not
    next: int  # the first step that has no plan
    missing: tuple[Missing, ...] = ()  # steps that the job's balance was to place, and the fall-back has


@dataclass(frozen=True)
class Committer:
    """Extends the plan log for one generation."""

    job: JobConfig
    log: PlanLog
    mixes: MixHistory
    stream: Stream
    generation: Generation
    place: Placer  # in the current layout
    # What this coordinator knows of the log, by segment. Records are never changed, and a lost create reads the winner.
    _segments: dict[int, MembershipSegment] = field(default_factory=dict, init=False)
    _parts: dict[int, list[PlacementSegment]] = field(default_factory=dict, init=False)
    _ends: dict[int, int | None] = field(default_factory=dict, init=False)

    def commit(
        self, cursor: Cursor, stop: int, is_late: IsLate = lambda: False, most: int = SEGMENT_STEPS, speeds: Speeds = ()
    ) -> Committed:
        """Commits from the cursor's step to its segment's end; placements only below `stop`, and of at most so many steps.

        Raises Stale when another coordinator has taken over, and Refused("StreamChanged") when the
        log holds another stream.
        """
        self.log.check_current(self.generation.generation)
        segment = self._membership(cursor)
        mine = [m for m in segment.memberships if m.step >= cursor.step]
        runnable = [
            m for m in mine if m.step < stop and (m.labels or not m.exhausted)
        ]  # the last one may be of ends alone
        plans, missing = self._placements(segment, runnable, most, is_late, speeds)
        cursors = {m.step: m.cursor for m in mine} | {segment.after.step: segment.after}
        following = runnable[most].step if len(runnable) > most else segment.after.step
        return Committed(plans, cursors, _end(segment.memberships), following, missing)

    def _membership(self, cursor: Cursor) -> MembershipSegment:
        """Reads and verifies the segment of the cursor's step, or computes and claims it."""
        number = cursor.step // SEGMENT_STEPS
        if number not in self._segments:
            self._forget()
            self._segments[number] = self._read_membership(number, cursor)
        return self._segments[number]

    def _forget(self) -> None:
        """A segment is followed by the next one: one is kept."""
        self._segments.clear()
        self._parts.clear()
        self._ends.clear()

    def _read_membership(self, number: int, cursor: Cursor) -> MembershipSegment:
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
        computed = self._compute(found.segment, found.memberships[0].cursor, self._recorded(found))
        again = replace(computed, phases=found.phases)
        here = {m.step: m.cursor for m in found.memberships} | {found.after.step: found.after}
        if again != found or here.get(cursor.step, cursor) != cursor:
            raise Refused(
                "StreamChanged",
                f"plan log segment {found.segment} (from step {found.memberships[0].step}) holds other sequences than the "
                "sources and the mix now give; restore them, or start a new run with a fresh checkpoint.uri",
            )

    def _recorded(self, found: MembershipSegment) -> MixRecord:
        """The mix record of a segment. A release without records added phases under the same number.

        Phases behind a recorded end never begin: earlier releases ended a stream before phases that had data left.
        """
        phases = msgspec.json.decode(found.phases, type=tuple[PhaseConfig, ...])
        begun = phases[: found.after.phase] if found.memberships[-1].exhausted else phases
        return replace(self.mixes.record(found.mix), phases=begun)

    def _compute(self, number: int, cursor: Cursor, record: MixRecord) -> MembershipSegment:
        stream = self.stream.under(record)
        memberships: list[Membership] = []
        while cursor.step < (number + 1) * SEGMENT_STEPS and not (memberships and memberships[-1].exhausted):
            membership, cursor = stream.advance(cursor)
            memberships.append(membership)
        phases = msgspec.json.encode(record.phases).decode()
        return MembershipSegment(number, phases, tuple(memberships), cursor, record.number)

    def _placements(
        self, segment: MembershipSegment, runnable: list[Membership], most: int, is_late: IsLate, speeds: Speeds
    ) -> tuple[tuple[StepPlan, ...], tuple[Missing, ...]]:
        if not runnable:
            return (), ()
        number = segment.segment
        if number not in self._parts:
            self._parts[number] = list(self._recorded_parts(number))
        parts, now, due = self._parts[number], runnable[:most], self._evaluated(segment, runnable)
        placed = self._place(now, parts, bool(due) and not parts, is_late, speeds)
        self._claim(number, now, parts, placed.placements, speeds)
        return tuple(self._plan(m, parts, m.step in due) for m in now), placed.missing

    def _evaluated(self, segment: MembershipSegment, runnable: list[Membership]) -> frozenset[int]:
        """The steps that an evaluation follows."""
        if not self.job.evaluation.tokens:
            return frozenset()
        if segment.segment not in self._ends:
            self._ends[segment.segment] = self._data_end(segment)
        end = self._ends[segment.segment]
        return frozenset(m.step for m in runnable if is_due(self.job, m.step, end))

    def _data_end(self, segment: MembershipSegment) -> int | None:
        """The first step that is not run because the data has ended; None: steps of later segments are run.

        The next segment may begin with a step of ends alone. As the mix was here: every coordinator finds the same.
        """
        if segment.memberships[-1].exhausted:
            return _end(segment.memberships)
        behind, _ = self.stream.under(self._recorded(segment)).advance(segment.after)
        return behind.step if _end((behind,)) == behind.step else None

    def _place(
        self, now: list[Membership], parts: list[PlacementSegment], evaluates: bool, is_late: IsLate, speeds: Speeds
    ) -> Placed:
        """Places what is in no record yet: what was late for a coordinator stays so for the next one."""
        known = _by_step(parts)
        wanted = {m.step: [s.tokens for s in m.sequences] for m in now if m.step not in known}
        if evaluates:
            wanted[_EVALUATION] = [s.tokens for s in self.stream.held_out.sequences]
        placed = self.place(wanted, is_late, speeds) if wanted else Placed({})
        if evaluation := placed.placements.get(_EVALUATION):
            check_forwards(evaluation, self.generation.layout)
        return placed

    def _plan(self, membership: Membership, parts: list[PlacementSegment], is_evaluated: bool) -> StepPlan:
        """The committed plan of a step: by these parts, some of which may be an earlier coordinator's."""
        part, follows = _by_step(parts)[membership.step], None
        placement, evaluation = part.placements[membership.step - part.first_step], parts[0].evaluation
        if evaluation is not None and is_evaluated:
            follows = evaluation_of(self.stream.held_out.sequences, evaluation, membership, len(placement.tasks))
        return step_plan(self.generation.generation, membership, placement, follows, part.speeds or ())

    def _recorded_parts(self, segment: int) -> Iterator[PlacementSegment]:
        for part in count():
            record = self.log.placement(self.generation.generation, segment, part)
            if record is None:
                return
            yield record

    def _claim(
        self, segment: int, now: list[Membership], parts: list[PlacementSegment], placed: dict[int, Placement],
        speeds: Speeds,
    ) -> None:  # fmt: skip
        """Adds parts until all these steps are in one: with these placements, or an earlier coordinator's, which may have
        begun earlier. The evaluation's is in the first part."""
        while left := [m.step for m in now if m.step not in _by_step(parts)]:
            record = PlacementSegment(
                self.generation.generation, segment, left[0], tuple(placed[s] for s in left),
                None if parts else placed.get(_EVALUATION), speeds or UNSET,
            )  # fmt: skip
            parts.append(self.log.claim_placement(record, len(parts)))


def _by_step(parts: list[PlacementSegment]) -> dict[int, PlacementSegment]:
    """The part that each step is in."""
    return {step: part for part in parts for step in range(part.first_step, part.first_step + len(part.placements))}


def data_ended(log: PlanLog, step: int) -> bool:
    """Whether the recorded memberships end before `step`. They count, whatever the mix and its phases now say."""
    found = [log.membership(segment) for segment in {max(step - 1, 0) // SEGMENT_STEPS, step // SEGMENT_STEPS}]
    ends = [_end(segment.memberships) for segment in found if segment is not None]
    return any(end is not None and end <= step for end in ends)


def _end(memberships: tuple[Membership, ...]) -> int | None:
    """The last step may be short; without a label it is not run at all. Others without one train with a gradient of zero."""
    last = memberships[-1]
    if not last.exhausted:
        return None
    return last.step + 1 if last.labels else last.step


def step_plan(
    generation: int,
    membership: Membership,
    placement: Placement,
    evaluation: Evaluation | None = None,
    speeds: Speeds = (),
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
        waves=1 + max((task.wave or 0 for task in placement.tasks), default=0),
        balance=placement.balance,
        speeds=speeds,
    )
