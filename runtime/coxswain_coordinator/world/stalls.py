"""Detects a world that neither ends nor makes progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coxswain.layout import Seat
from coxswain_coordinator.state.registry import join
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.world.saves import last_save, save_before, without

SILENCE = 30.0
"""Seconds without a heartbeat of a worker, which sends one every second to twelve, even inside a collective."""

ARRIVAL = 300.0
"""Seconds until the first heartbeat in a new world."""

LONGEST = 60.0
PAUSE = 5.0
"""Seconds between two checks beyond which this process was paused, not the others."""

MEDIANS = 20
"""A step may take max(60 s, 20 x the median of the latest in this layout)."""

DATA = 900.0
"""Seconds for a step whose data is not delivered: workers give up by themselves after 600 s, and name what they waited for."""

SAVE = 900.0
"""Seconds in which some rank writes a part of a checkpoint that is waited for: some 256 MiB, or one large tensor."""

Place = Callable[[int], str]
"""Name and node of a trainer, from its index in the world."""


def named(seat: Seat, place: Place) -> str:
    return f"{seat.rank} on {place(seat.device.trainer)}"


def silent(seats: Sequence[Seat], last_heard: Mapping[int, float], entered: float, now: float, place: Place) -> str:
    """Names a rank whose heartbeats have stopped. Times by one monotonic clock."""
    for seat in seats:
        limit = SILENCE if seat.rank in last_heard else ARRIVAL
        seconds = now - last_heard.get(seat.rank, entered)
        if seconds > limit:
            return f"rank {named(seat, place)} has been silent for {seconds:.0f} s"
    return ""


def slow_start(late: Sequence[str], seconds: float, limit: float) -> str:
    """Describes a world in which no step ends and no rank gets on with its start for `seconds`.

    `late`: ranks without a report.
    """
    if seconds <= limit:
        return ""
    ranks = join(late) or "none"
    return (
        f"the first step has not ended, and no rank has got on with its start for {seconds:.0f} s (limit {limit:.0f} s, "
        f"firstStepTimeoutSeconds); not done by rank {ranks}"
    )


@dataclass(frozen=True, slots=True)
class OpenStep:
    """The first step that is not closed. `late`: ranks without a report, named; `undelivered`: sequences without a digest.

    `evaluation`: seconds that an evaluation behind it may take besides; no duration of a step has one in it. `unknown`: seconds
    that it may take where none is known.
    """

    number: int
    late: Sequence[str]
    undelivered: int = 0
    evaluation: float = 0.0
    unknown: float = LONGEST

    @property
    def starved(self) -> bool:
        """Whether ranks may wait for its data."""
        return bool(self.late and self.undelivered)


def stuck(step: OpenStep, durations: Sequence[float], seconds: float) -> str:
    """Describes a step that takes too long.

    `seconds`: since it began, the step before was closed, or what it waited for was there.
    """
    usual = MEDIANS * sorted(durations)[len(durations) // 2] if durations else step.unknown
    limit = max(DATA if step.starved else LONGEST, usual) + step.evaluation
    if seconds <= limit:
        return ""
    missing = f"; {step.undelivered} of its sequences are not delivered" if step.undelivered else ""
    ranks = join(step.late) or "none"
    return (
        f"step {step.number} has not ended for {seconds:.0f} s (limit {limit:.0f} s); not done by rank {ranks}{missing}"
    )


def unsaved(what: str, late: Sequence[str], seconds: float) -> str:
    """Describes a save on which ranks wait and none gets on. `late`: ranks that have not written all of it, named."""
    if not late or seconds <= SAVE:
        return ""
    return f"{what} no rank has written a part for {seconds:.0f} s (limit {SAVE:.0f} s); not done by rank {join(late)}"


class StallDetector:
    """Checks once a second whether the current world makes progress.

    `start`: seconds for a world before its first closed step, since a rank last got on. Restoring, initialising and the
    first step may take many times a usual step, and so may an evaluation of long documents.
    """

    def __init__(self, start: float) -> None:
        self._start = start
        self._session: Session | None = None
        self._entered = self._since = self._looked = self._wrote = 0.0
        self._waited = self._starved = 0.0  # when the open step last waited for a plan or a save, and for its data
        self._mark: tuple[int, int, int] = (-1, -1, -1)  # changes with progress
        self._written = -1  # changes with parts of saves

    def judge(self, session: Session, durations: Sequence[float], now: float, place: Place) -> str:
        """Why the world must be replaced; empty: it makes progress. `durations`: of steps in this layout. A coordinator that has
        adopted the world may know none: they are in the checkpoint before."""
        if session is self._session and now - self._looked < 1:
            return ""
        self._look(session, now)
        seats = [seat for seat in session.world.seats if seat.rank not in session.exited]
        if why := silent(seats, session.last_heard, self._entered, now, place):
            return why
        if (save := last_save(session)) is not None:
            return self._judge_save(session, f"step {save} is not saved, and", save, now, place)
        missing = session.book.missing_ranks()
        if (save := save_before(session, missing)) is not None:
            self._waited = now
            waits = f"step {session.book.open} waits until step {save} is saved, of which"
            return self._judge_save(session, waits, save, now, place)
        late = [named(session.world.seats[rank], place) for rank in missing]
        if not session.started:
            return slow_start(late, now - self._since, self._start)
        plan = session.open_plan()
        if session.waits:
            self._waited = now
            return ""
        undelivered = session.book.missing_digests(plan) if plan else 0
        evaluation = self._start if plan and plan.evaluation else 0.0
        step = OpenStep(session.book.open, late, undelivered, evaluation, self._start)
        return stuck(step, durations, now - self._clock_began(step, now))

    def _clock_began(self, step: OpenStep, now: float) -> float:
        """When the clock of the open step began: what it has waited for its plan, a save or its data is no time of its own."""
        began = max(self._since, self._waited)
        if step.starved:
            self._starved = now
            return began
        return max(began, self._starved)

    def _judge_save(self, session: Session, what: str, step: int, now: float, place: Place) -> str:
        late = [named(session.world.seats[rank], place) for rank in without(session, step)]
        return unsaved(what, late, now - max(self._since, self._wrote))

    def _look(self, session: Session, now: float) -> None:
        if session is not self._session or now - self._looked > PAUSE:
            self._session, self._entered, self._since = session, now, now
            session.last_heard = dict.fromkeys(session.last_heard, now)
        started = session.started
        mark = session.book.open, started, 0 if started else session.start_progress
        if mark != self._mark:
            self._mark, self._since = mark, now
        if session.progress != self._written:
            self._written, self._wrote = session.progress, now
        self._looked = now
