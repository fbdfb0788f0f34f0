"""Runs the operation lists on the host as the communicators run them. A plan that could hang, hangs here.

NCCL runs the batches of one communicator in the order in which a rank enqueues them; a batch ends once each of its
messages has met its partner. A stage enqueues what its first operation receives, then for each operation the hops of
its ring, and one batch with its sends and the next operation's receives. The ranks of a tensor group walk one list and
wait for each other in every operation, so a stage is one queue. gloo buffers sends and never hangs where NCCL does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

from coxswain.layout import Layout
from coxswain.plan.values import Operation, Placement, Task

Place = tuple[int, int]  # replica, stage
Lists = dict[Place, tuple[Operation, ...]]


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

    def places(self, tasks: tuple[Task, ...]) -> list[Place]:
        if self.what == "ring":
            return [(replica, self.stage) for replica in tasks[self.task].replicas]
        return [(self.replica, self.stage), (self.replica, self.stage + 1)]


def replay(placement: Placement, layout: Layout) -> list[str]:
    """Returns the faults of the operation lists.

    They are missing, foreign or repeated operations, a backward before its forward, stages that differ in order, and
    hangs.
    """
    lists = {(o.replica, o.stage): o.operations for o in placement.operations}
    stages = {(r, s) for r, replica in enumerate(layout.replicas) for s in range(len(replica.stages))}
    if set(lists) != stages or len(placement.operations) != len(stages):
        return [f"operations are listed for (replica, stage) {sorted(lists)}; the layout has {sorted(stages)}"]
    tasks = _by_replica(placement.tasks)
    faults = [fault for place in sorted(lists) for fault in _own(place, lists, tasks[place[0]])]
    faults = faults or [fault for place in sorted(lists) for fault in _order(place, lists)]
    return faults or _walk(lists, placement.tasks)


def _by_replica(tasks: tuple[Task, ...]) -> dict[int, list[int]]:
    """The numbers of each replica's tasks."""
    found: dict[int, list[int]] = defaultdict(list)
    for task in tasks:
        for replica in task.replicas:
            found[replica].append(task.index)
    return found


def _own(place: Place, lists: Lists, tasks: list[int]) -> list[str]:
    """Demands each of the replica's tasks forward once, then backward once, and nothing else."""
    mine = lists[place]
    wanted = sorted((kind, task) for task in tasks for kind in "FB")
    have = sorted((o.kind, o.task) for o in mine)
    if have != wanted:
        odd = sorted(set(have) ^ set(wanted)) or [x for x in have if have.count(x) > 1]
        kind, task = odd[0]
        return [f"{_name(place, lists)}: operation {kind} of task {task} is missing, foreign or repeated"]
    at = {(o.kind, o.task): i for i, o in enumerate(mine)}
    late = [t for kind, t in at if kind == "F" and at["F", t] > at["B", t]]
    return [f"{_name(place, lists)}: task {late[0]} goes backward before forward"] if late else []


def _order(place: Place, lists: Lists) -> Iterator[str]:
    """Demands the order of the stage before: messages have no names, the first one sent is the first one received."""
    replica, stage = place
    if not stage:
        return
    for kind in ("F", "B"):
        before, mine = ([o.task for o in lists[replica, s] if o.kind == kind] for s in (stage - 1, stage))
        wrong = next(((a, b) for a, b in zip(before, mine, strict=True) if a != b), None)
        if wrong:
            yield (
                f"{_name(place, lists)}: {kind} of task {wrong[1]} is where stage {stage - 1} has task {wrong[0]}; "
                f"all stages of a replica need one order"
            )


def _walk(lists: Lists, tasks: tuple[Task, ...]) -> list[str]:
    """Advances the queues: a stage leaves an entry once everything in it has met."""
    queues = {place: list(_entries(place, lists, tasks)) for place in sorted(lists)}
    at = dict.fromkeys(queues, -1)
    missing = dict.fromkeys(queues, 0)
    here: dict[Meeting, list[Place]] = defaultdict(list)
    ready = list(queues)
    while ready:
        place = ready.pop()
        at[place] += 1
        if at[place] == len(queues[place]):
            continue
        missing[place] = len(queues[place][at[place]])
        for meeting in queues[place][at[place]]:
            here[meeting].append(place)
            if len(here[meeting]) == len(meeting.places(tasks)):
                for party in here.pop(meeting):
                    missing[party] -= 1
                    if not missing[party]:
                        ready.append(party)
    stuck = sorted(here.items(), key=lambda item: (item[0].task, item[0].kind != "F", item[0].stage))
    return [_hang(meeting, places, lists, tasks) for meeting, places in stuck]


def _entries(place: Place, lists: Lists, tasks: tuple[Task, ...]) -> Iterator[list[Meeting]]:
    """The entries of a stage's queue: hops of rings, and batches of messages between operations."""
    replica, stage = place
    deep = (replica, 1) in lists
    for operation, following in pairwise((None, *lists[place], None)):
        if operation and len(tasks[operation.task].replicas) > 1:
            yield [Meeting("ring", operation.kind, operation.task, stage)]
        batch = [*_messages(operation, place, lists, sends=True), *_messages(following, place, lists, sends=False)]
        if deep and batch:
            yield batch


def _messages(operation: Operation | None, place: Place, lists: Lists, *, sends: bool) -> Iterator[Meeting]:
    replica, stage = place
    if operation:
        upper = stage if (operation.kind == "F") == sends else stage - 1
        if upper >= 0 and (replica, upper + 1) in lists:
            yield Meeting("message", operation.kind, operation.task, upper, replica)


def _name(place: Place, lists: Lists) -> str:
    replica, stage = place
    return f"replica {replica}, stage {stage}" if (replica, 1) in lists else f"replica {replica}"


def _hang(meeting: Meeting, here: list[Place], lists: Lists, tasks: tuple[Task, ...]) -> str:
    task = tasks[meeting.task]
    absent = sorted(set(meeting.places(tasks)) - set(here))
    if meeting.what == "ring":
        doing = f"in {meeting.kind} of"
    else:
        sender = meeting.stage if meeting.kind == "F" else meeting.stage + 1
        what = "output" if meeting.kind == "F" else "gradient"
        doing = f"to {'send' if here[0][1] == sender else 'receive'} the {what} of"
    return (
        f"hang: {_name(min(here), lists)} waits {doing} task {task.index} (sequence {task.slices[0].sequence}) "
        f"for {_name(absent[0], lists)}, which is at another operation"
    )
