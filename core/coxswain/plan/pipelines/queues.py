"""Walks operation lists as the communicators run them, all stages at once, and times what they do: the one clock of plans.

NCCL runs the batches of one communicator in the order in which a rank enqueues them; a batch ends once each of its
messages has met its partner. A stage enqueues what its first operation receives, then for each operation the hops of
its ring, and one batch with its sends and the next operation's receives. The ranks of a tensor group walk one list and
wait for each other in every operation, so a stage is one queue. gloo buffers sends and never hangs where NCCL does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from coxswain.plan.pipelines.lists import Bools, Floats, Ints, Operations, Place, Places
from coxswain.plan.values import Task


class Meeting(NamedTuple):
    """What several stages must reach before any of them goes on: a ring's hops, or a message of one to the next.

    A ring's meeting is at one stage of all members. A message's is between `stage` and `stage` + 1 of `replica`: the
    output of F goes down, the gradient of B up.
    """

    what: Literal["ring", "message"]
    kind: Literal["F", "B"]
    task: int
    stage: int
    replica: int = -1

    def places(self, task: Task) -> list[Place]:
        if self.what == "ring":
            return [(replica, self.stage) for replica in task.replicas]
        return [(self.replica, self.stage), (self.replica, self.stage + 1)]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A meeting that never comes to be, and the places that wait in it."""

    meeting: Meeting
    here: list[Place]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a walk: what never comes to be (nothing: the lists end), and when each place is done with its list."""

    stuck: list[Waiting]
    ends: Floats
    left: Floats  # when each entry was left


class Queues:
    """The entries of every place's queue: the hops of a ring, or a batch with at most one send and one receive.

    All stages of a replica must have one order of forwards, and one of backwards, as `replay` demands: the n-th message
    sent is the n-th one received. So meetings have numbers: 0 is none, then come those of messages, then those of rings.
    """

    def __init__(self, places: Places, operations: Operations, tasks: Sequence[Task], seconds: Floats) -> None:
        """`seconds`: of each operation."""
        self._places, self._operations = places, operations
        degree = np.array([len(task.replicas) for task in tasks], dtype=np.int64)
        ring = degree[operations.task] > 1
        self._rings, self._depth = np.flatnonzero(degree > 1), int(places.stage.max(initial=0)) + 1
        self._number_messages()
        rows = 2 * operations.task.size + len(places)
        # The batch before each operation; behind a place's last one there is one more.
        batch = 2 * np.arange(operations.task.size) + operations.place
        one, takes = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
        one[batch + 2], takes[batch] = self._message(sent=True), self._message(sent=False)
        one[batch[ring] + 1] = self._ring(ring)
        after, self._own, self._seconds = np.zeros(rows), batch + ring, seconds
        after[self._own] = seconds
        self._keep(one, takes, after)
        needs = np.repeat(degree[self._rings], 2 * self._depth)
        self._needs = np.concatenate([np.full(int(self._edges[-1]), 2), needs])

    def _number_messages(self) -> None:
        """Counts the forwards of each place, where the messages to the place behind it begin, and each operation's turn."""
        o, first = self._operations, self._operations.first
        backward = np.concatenate([[0], np.cumsum(o.backward)])
        self._forwards = np.diff(first) - np.diff(backward[first])
        self._edges = 1 + np.concatenate([[0], np.cumsum(np.where(self._places.last, 0, np.diff(first)))])
        before = backward[:-1] - backward[first[o.place]]  # backwards of the same place
        self._turn = np.where(o.backward, before, np.arange(o.place.size) - first[o.place] - before)

    def _message(self, *, sent: bool) -> Ints:
        """The meeting in which each operation's result leaves, or its input comes; 0: none."""
        o, last = self._operations, self._places.last[self._operations.place]
        upper = np.where(o.backward == sent, o.place - 1, o.place)
        nothing = np.where(o.backward == sent, self._places.stage[o.place] == 0, last)
        return np.where(nothing, 0, self._edges[upper] + self._turn + o.backward * self._forwards[upper])

    def _ring(self, ring: Bools) -> Ints:
        o = self._operations
        number = np.searchsorted(self._rings, o.task[ring]) * 2 + o.backward[ring]
        found: Ints = self._edges[-1] + number * self._depth + self._places.stage[o.place[ring]]
        return found

    def _keep(self, one: Ints, takes: Ints, after: Floats) -> None:
        """Leaves out empty entries, but a place's first one."""
        begin = 2 * self._operations.first[:-1] + np.arange(len(self._places))
        keep = (one > 0) | (takes > 0)
        keep[begin] = True
        at = np.flatnonzero(keep)
        self._after = np.add.reduceat(after, at) if at.size else after
        number = np.cumsum(keep) - 1
        self._own = number[self._own]  # the entry behind which each operation runs
        self._begin = number[begin]
        self._end = np.append(self._begin[1:], at.size)
        self._meetings = np.stack([one[at], takes[at]])

    def walk(self, clock: Floats) -> Outcome:
        """Advances all places; one leaves an entry once everything in it has met. `clock`: when each place begins."""
        at, clock = self._begin.copy(), clock.copy()
        arrived, time = np.zeros(self._needs.size, dtype=np.int64), np.zeros(self._needs.size)
        met, left_at = np.arange(self._needs.size) == 0, np.zeros(self._after.size)
        come = np.arange(len(self._places))
        while come.size:
            for meeting in self._meetings[:, at[come]]:
                np.add.at(arrived, meeting, 1)
                np.maximum.at(time, meeting, clock[come])
                met[meeting] |= arrived[meeting] == self._needs[meeting]
            left = np.flatnonzero(at < self._end)
            one, two = self._meetings[:, at[left]]
            go = met[one] & met[two]
            come, one, two = left[go], one[go], two[go]
            time[0] = 0
            later = np.maximum(time[one], time[two])
            left_at[at[come]] = clock[come] = np.maximum(clock[come], later)
            clock[come] += self._after[at[come]]
            at[come] += 1
            come = come[at[come] < self._end[come]]
        return Outcome(self._stuck(at, met), clock, left_at)

    def begins(self, outcome: Outcome) -> Floats:
        """When each operation begins: those behind one entry run one after another."""
        before = np.cumsum(self._seconds) - self._seconds
        first = np.searchsorted(self._own, self._own)
        found: Floats = outcome.left[self._own] + (before - before[first])
        return found

    def _stuck(self, at: Ints, met: Bools) -> list[Waiting]:
        here: dict[int, list[Place]] = {}
        for place in np.flatnonzero(at < self._end).tolist():
            for meeting in self._meetings[:, at[place]].tolist():
                if not met[meeting]:
                    here.setdefault(meeting, []).append(self._places.name(place))
        found = [Waiting(self._meeting(number), places) for number, places in here.items()]
        return sorted(found, key=lambda w: (w.meeting.task, w.meeting.kind != "F", w.meeting.stage))

    def _meeting(self, number: int) -> Meeting:
        behind = number - int(self._edges[-1])
        if behind >= 0:
            which, stage = divmod(behind, self._depth)
            return Meeting("ring", "B" if which % 2 else "F", int(self._rings[which // 2]), stage)
        place = int(np.searchsorted(self._edges, number, side="right")) - 1
        turn, forwards = number - int(self._edges[place]), int(self._forwards[place])
        backward, mine = turn >= forwards, slice(*self._operations.first[place : place + 2].tolist())
        same = self._operations.task[mine][self._operations.backward[mine] == backward]
        replica, stage = self._places.name(place)
        return Meeting("message", "B" if backward else "F", int(same[turn - backward * forwards]), stage, replica)


def walk_waves(
    places: Places, operations: Operations, tasks: Sequence[Task], seconds: Floats
) -> Iterator[tuple[Bools, Queues, Outcome]]:
    """Walks wave by wave: between two waves all stages are at rest. Yields which operations, their queues, and the outcome."""
    wave, clock = np.array([task.wave or 0 for task in tasks], dtype=np.int64)[operations.task], np.zeros(len(places))
    for number in np.unique(wave):
        chosen: Bools = wave == number
        queues = Queues(places, operations.take(chosen), tasks, seconds[chosen])
        outcome = queues.walk(clock)
        yield chosen, queues, outcome
        clock = np.full(len(places), float(outcome.ends.max()))
