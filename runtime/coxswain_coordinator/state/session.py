"""One world generation: plans, directives, reports and saves. Pure: no clock, no storage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from enum import IntEnum

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.errors import Refused
from coxswain.membership.values import Cursor
from coxswain.planlog import Generation
from coxswain.structs import prepare
from coxswain.wire import End, Rendezvous, StepDirective, StepPlan, StepPlans, World
from coxswain_coordinator.checkpoint.pending import PendingCheckpoints
from coxswain_coordinator.planning.committer import Committed
from coxswain_coordinator.planning.parts import EncodedDirective, EncodedPlans, PlanParts
from coxswain_coordinator.steps import StepTracker, shares

_PLANS_A_REPLY = 8

Cut = Callable[[PlanParts], msgspec.Raw]
"""Chooses a member's part of a plan."""


class Hearsay(IntEnum):
    """How far what explains the loss of a world is from its cause. What is nearer replaces what is farther."""

    EXIT = 0  # a worker's end, or what the coordinator itself has found
    OWN_FAULT = 1  # an error of a worker's own, which goes on in the next world
    LOST_PEER = 2  # a worker has lost a peer, or has ended and its exit is not reported


class Move(msgspec.Struct, frozen=True):
    """A planned change ends a world before `step`."""

    step: int
    why: str
    saves: bool  # with a checkpoint: the next world may not have all of the state in memory
    decided: bool = False  # a rank has the directive


class Session:
    """What the coordinator knows of the current generation.

    Another generation gets another session.

    It begins at the cursor's step: the generation's first one, or that of a later checkpoint if an
    earlier coordinator made this generation.
    """

    def __init__(
        self, job: JobConfig, record: Generation, world: World, cursor: Cursor, stream_digest: str, saved: int | None = None
    ) -> None:  # fmt: skip
        """`saved`: the step of the newest checkpoint, where the world does not begin at it."""
        first = cursor.step
        self.record, self.world = record, world
        model = replace(job.model, vocabulary=world.vocabulary)
        self.book = StepTracker(world.seats, first, stream_digest, shares(record.layout, model))
        self.pending = PendingCheckpoints(record.generation)
        self.cursors: dict[int, Cursor] = {first: cursor}
        self.committed = first  # the first step without a committed plan
        self.rendezvous: Rendezvous | None = None
        self.exited: dict[int, int] = {}  # exit code by rank
        self.lost = ""  # why this world must be replaced; empty: it is valid
        self.planned = False  # lost by a planned change: it ended at a step boundary
        self.hearsay = Hearsay.EXIT  # how well it is known why this world is lost
        self.move: Move | None = None  # a planned change ends this world
        self.stop_at: int | None = None  # suspend before this step
        self.ending: StepDirective | None = None
        self.saved = first if saved is None else saved  # up to here everything is in a checkpoint (or is the beginning)
        self.adopted = False  # an earlier coordinator made it
        self._first, self._begun = first, first - 1
        self.last_heard: dict[int, float] = {}  # last heartbeat by rank, time.monotonic
        self._progress: dict[int, int] = {}  # of the start, by rank
        self._placed: set[int] = set()  # ranks that have said which step they have begun
        self.hung = False  # lost without an exit
        self.failed = False  # lost by a failure that is counted
        self._every, self._steps = job.checkpoint.every_steps, job.total_steps
        self._data_end: int | None = None
        self._plans: dict[int, StepPlan] = {}
        self._parts: dict[int, PlanParts] = {}  # of the same plans
        self._replicas = replicas_of(world)
        self._directives: dict[int, StepDirective] = {}
        self._saving: set[int] = set()  # requested checkpoints without a manifest
        self.take_probes: Callable[[], frozenset[int]] = frozenset  # ranks that probe before the step that begins next
        self._probes: dict[int, frozenset[int]] = {}  # by step

    @property
    def progress(self) -> int:
        """Grows while any rank loads its state or writes a checkpoint."""
        return sum(self._progress.values())

    @property
    def begun(self) -> int:
        """The last step that has begun: it has a directive or a report.

        In an adopted world the open step may have begun without either.
        """
        if self.adopted and self.ending is None and self._begun >= self._first:
            return max(self._begun, min(self.book.open, self.end_step - 1))
        return self._begun

    @property
    def waits(self) -> bool:
        """Whether no rank can be in the open step: it has no plan, or ranks are to leave before it. A rank that cannot reach the
        coordinator begins a step with a plan without a directive."""
        if self.begun >= self.book.open:
            return False
        leaves = self.ending is not None or (self.move is not None and self.move.decided)
        return leaves or self.open_plan() is None

    @property
    def started(self) -> bool:
        """Whether every rank has restored its state: a step is done. An adopted world may have done it before."""
        return self.book.open > self._first or (self.adopted and self._begun >= self._first)

    @property
    def start_progress(self) -> int:
        """Grows while any rank gets on with its start: arrives, loads, asks for its first directive, reports."""
        asked = self._begun - self._first + 1
        return self.progress + len(self.last_heard) + asked - len(self.book.missing_ranks())

    def hear(self, rank: int, now: float, progress: int) -> None:
        """Records a heartbeat."""
        self.last_heard[rank] = now
        self._progress[rank] = max(progress, self._progress.get(rank, 0))

    def place(self, rank: int, begun: int) -> bool:
        """Records the step that a rank has begun, by its heartbeat. Returns whether that is its first word of it."""
        self.begin(begun)
        first = rank not in self._placed
        self._placed.add(rank)
        return first

    def forgive(self, now: float, seconds: float) -> None:
        """Does not count so many seconds, in which no heartbeat could be heard, as silence."""
        self.last_heard = {rank: min(now, at + seconds) for rank, at in self.last_heard.items()}

    def begin(self, step: int) -> None:
        """Records that a rank is in this step or beyond."""
        self._begun = max(self._begun, step)

    @property
    def end_step(self) -> int:
        """The first step that is not run, as far as is known: the stop, or where the data ends."""
        return self._steps if self._data_end is None else min(self._steps, self._data_end)

    @property
    def known_end(self) -> int | None:
        """The first step that is not run because of a decision that ranks cannot know: a stop, or the end of the data."""
        if self.ending is not None:
            return self.ending.step
        if self.move is not None and self.move.decided:
            return self.move.step
        ends = [end for end in (self.stop_at, self.move.step if self.move else None) if end is not None]
        return min(max(min(ends), self._begun + 1), self.end_step) if ends else self._data_end

    @property
    def exhausted(self) -> bool:
        """Whether the data ended before the stop."""
        return self._data_end is not None and self._data_end < self._steps

    def add(self, committed: Committed) -> None:
        """Takes in newly committed plans."""
        self._plans.update((plan.step, plan) for plan in committed.plans)
        self._parts.update((plan.step, PlanParts(plan)) for plan in committed.plans)
        self.cursors.update(committed.cursors)
        self.committed = committed.next
        if committed.end is not None:
            self._data_end = committed.end

    def needs_plans(self, ahead: int, waits: bool = False) -> bool:
        return not self.lost and self.wanted_plans(ahead, waits) > 0

    def wanted_plans(self, ahead: int, waits: bool = False) -> int:
        """How many steps lack a plan among so many behind the one that has begun last.

        `waits`: the last of them is wanted only once the step before that one is closed, since its speeds count.
        """
        last = self.begun - (waits and self.book.open == self.begun - 1)
        return min(last + 1 + ahead, self.end_step) - self.committed

    def plans_from(self, step: int) -> StepPlans | None:
        """The next whole plans."""
        found = self._steps_from(step)
        return StepPlans(tuple(self._plans[s] for s in found)) if found else None

    def parts_from(self, step: int, cut: Cut) -> EncodedPlans | None:
        """A member's parts of the next plans."""
        found = self._steps_from(step)
        return EncodedPlans(tuple(cut(self._parts[s]) for s in found)) if found else None

    def _steps_from(self, step: int) -> list[int]:
        return sorted(s for s in self._plans if s >= step)[:_PLANS_A_REPLY]

    def cut_of_rank(self, rank: int) -> Cut:
        """Raises Refused for a rank that this world does not have."""
        if not 0 <= rank < len(self.world.seats):
            raise Refused(
                "WrongRank", f"rank {rank}: generation {self.record.generation} has {len(self.world.seats)} ranks"
            )
        seat = self.world.seats[rank]
        return lambda parts: parts.of_seat(seat)

    def works(self, trainer: str) -> bool:
        """Whether a device of this trainer has a seat in this world: one on standby holds nothing."""
        return bool(self._replicas.get(trainer))

    def cut_of_trainer(self, name: str) -> Cut:
        """A trainer without a seat in this world gets parts without tasks."""
        replicas = frozenset(self._replicas[name])
        return lambda parts: parts.of_replicas(replicas)

    def part_of(self, directive: StepDirective, cut: Cut, rank: int = -1) -> EncodedDirective:
        """The directive with a member's part of its plan; of a rank also whether it is to probe."""
        plan = None if directive.plan is None else cut(self._parts[directive.step])
        probe = rank in self._probes.get(directive.step, ()) or UNSET
        return EncodedDirective(directive.step, directive.checkpoint, directive.end, plan, probe)

    def open_plan(self) -> StepPlan | None:
        """The plan of the first step that is not closed."""
        return self._plans.get(self.book.open)

    def directive(self, step: int) -> StepDirective | None:
        """The directive of a step, the same for every rank; None: not decided yet.

        It begins the step.
        """
        if self.lost:
            return None
        if step not in self._directives:
            directive = self._issue(step)
            if directive is None:
                return None
            self._directives[step] = directive
        return self._directives[step]

    def catching_up(self, step: int) -> bool:
        """Whether an adopted world is ahead of our plans: a rank then begins the step alone."""
        behind = self.adopted and not self.lost and self.ending is None and self.committed <= step < self.end_step
        if behind:
            self.begin(step)
        return behind

    def _issue(self, step: int) -> StepDirective | None:
        end = self._end(step)
        if end in ("Suspended", "Moved") and self._may_be_passed():
            return None
        plan = None if end else self._plans.get(step)
        if not end and plan is None:
            return None
        saves = self.move is not None and self.move.saves if end == "Moved" else bool(end)
        due = step > self.saved and (saves or (self._every > 0 and step % self._every == 0))
        directive = StepDirective(step=step, checkpoint=due, end=end, plan=plan)
        if due:
            self._saving.add(step)
        if end == "Moved" and self.move is not None:
            self.move = replace(self.move, step=step, decided=True)
        elif end:
            self.ending = directive
        else:
            self.begin(step)
            self._probes = {step: self.take_probes()}
        return directive

    def _may_be_passed(self) -> bool:
        """Whether a rank may have begun the step before which the next directive would stop its peers. In an adopted world one
        may have done so before this coordinator; nothing says that but its heartbeat."""
        if not self.adopted or (self.move is not None and self.move.decided):
            return False
        return any(seat.rank not in self._placed and seat.rank not in self.exited for seat in self.world.seats)

    def _end(self, step: int) -> End:
        if step >= self.end_step:
            return "Completed"
        moves = self.move is not None and step >= self.move.step
        if moves and self.move is not None and self.move.decided:  # a peer has left: the stop is the next world's
            return "Moved"
        if step <= self._begun:  # a rank that has reached no coordinator is in it without a directive
            return ""
        if self.stop_at is not None and step >= self.stop_at:
            return "Suspended"
        return "Moved" if moves else ""

    def request_move(self, why: str, saves: bool = False) -> bool:
        """Ends this world before the first step that has not begun, for a planned change. `saves`: with a checkpoint.

        Until a rank has the directive, reason and `saves` may change; the step stays. Returns whether something is new.
        """
        before = self.move
        if before is not None and before.decided:
            return False
        self.move = Move(before.step if before else self.begun + 1, why, saves)
        return self.move != before

    def withdraw_move(self) -> bool:
        """Takes back a planned change that is not wished for any more. Returns whether there was one that no rank knows of."""
        undecided = self.move is not None and not self.move.decided
        if undecided:
            self.move = None
        return undecided

    @property
    def moved(self) -> bool:
        """Whether a planned change may begin: every rank has done the steps before it, and what it saves is saved."""
        if self.move is None or not self.move.decided:
            return False
        return self.book.open >= self.move.step and (not self.move.saves or self.saved >= self.move.step)

    def request_stop(self, at_step: int) -> None:
        """Stops before the first step from `at_step` on that has not begun. The earliest stop counts."""
        wanted = max(at_step, self.begun + 1)
        self.stop_at = wanted if self.stop_at is None else min(self.stop_at, wanted)

    def adopt_end(self, step: int, completed: bool) -> None:
        """Ends before this step: a rank had that directive, perhaps from an earlier coordinator."""
        if self.ending is not None:
            return
        if completed:
            self._data_end = step
        self.ending = StepDirective(
            step=step, checkpoint=True, end="Completed" if completed else "Suspended", plan=None
        )
        self._directives[step] = self.ending
        self._saving.add(step)

    def adopt_move(self, step: int) -> None:
        """A rank has left before this step for a planned change, perhaps of an earlier coordinator."""
        if self.move is None or not self.move.decided:
            self.move = Move(step, "a planned change", saves=True, decided=True)

    def forget_before(self, step: int) -> None:
        """Drops what only closed steps needed; what a coming manifest needs stays."""
        for old in [s for s in self._plans if s < step]:
            del self._plans[old], self._parts[old]
            self._directives.pop(old, None)
        for tracker in (self.cursors, self.book.stream_digests):
            for old in [s for s in tracker if s < step and not self.may_be_saved(s)]:
                del tracker[old]

    def may_be_saved(self, step: int) -> bool:
        """Whether a manifest of this step may come: workers save when due, also on their own."""
        due = self._every > 0 and step % self._every == 0 and step > self.saved
        return due or step in self._saving

    def mark_saved(self, step: int) -> None:
        """The manifest of this step is made."""
        self.saved = step
        self._saving = {s for s in self._saving if s > step}
        self.pending.forget(step)

    @property
    def saved_end(self) -> bool:
        """Whether the end is decided and nothing remains to be saved for it."""
        return self.ending is not None and self.saved >= self.ending.step


def replicas_of(world: World) -> defaultdict[str, set[int]]:
    """The replicas of which a trainer has a device, by the trainer's name."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for seat in world.seats:
        found[world.trainers[seat.device.trainer]].add(seat.replica)
    return found


prepare(__name__)
