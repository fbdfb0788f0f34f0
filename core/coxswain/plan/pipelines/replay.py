"""Runs the operation lists on the host as the communicators run them (`queues.py`). A plan that could hang, hangs here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter
from typing import Literal

import numpy as np
from msgspec.structs import replace

from coxswain.layout import Layout
from coxswain.plan.pipelines.lists import Operations, Place, Places, operations_of, places_of
from coxswain.plan.pipelines.queues import Waiting, walk_waves
from coxswain.plan.values import Operation, Placement, Task

Lists = dict[Place, tuple[Operation, ...]]
Kinds = Literal["FB", "F"]


def replay(placement: Placement, layout: Layout, kinds: Kinds = "FB") -> list[str]:
    """Returns the faults of the operation lists. `kinds`: "F" for an evaluation, which goes forward only.

    They are missing, foreign or repeated operations, a backward before its forward, stages that differ in order, waves
    that mix, and hangs.
    """
    lists = {(o.replica, o.stage): o.operations for o in placement.operations}
    places, tasks = places_of(layout), placement.tasks
    stages = [places.name(at) for at in range(len(places))]
    if sorted(lists) != stages or len(placement.operations) != len(stages):
        return [f"operations are listed for (replica, stage) {sorted(lists)}; the layout has {stages}"]
    found = operations_of(sorted(placement.operations, key=attrgetter("replica", "stage")))
    faults = [] if _complete(places, found, tasks, kinds) else [*_named(lists, tasks, kinds)]
    faults = faults or [*_mixed_waves(places, found, tasks)]
    return faults or _hangs(places, found, lists, tasks)


def forwards(placement: Placement) -> Placement:
    """The placement without backwards, as an evaluation runs it."""
    lists = (
        replace(each, operations=tuple(o for o in each.operations if o.kind == "F")) for each in placement.operations
    )
    return replace(placement, operations=tuple(lists))


def _complete(places: Places, found: Operations, tasks: tuple[Task, ...], kinds: Kinds) -> bool:
    """Whether all stages of a replica run each of its tasks once and in one order, backward after forward."""
    if ((found.task < 0) | (found.task >= len(tasks))).any():
        return False
    forward, backward = found.take(~found.backward), found.take(found.backward)
    if kinds == "F":
        return not backward.task.size and _all_once(places, forward, tasks)
    return all(_all_once(places, each, tasks) for each in (forward, backward)) and _in_turn(found, forward, backward)


def _all_once(places: Places, found: Operations, tasks: tuple[Task, ...]) -> bool:
    """Whether a replica's first stage has each of its tasks once, and all others have them in that order."""
    replica = np.array([r for task in tasks for r in task.replicas], dtype=np.int64)
    number = np.repeat(np.arange(len(tasks)), [len(task.replicas) for task in tasks])
    many = np.bincount(replica, minlength=places.replicas)[places.replica]
    if not np.array_equal(np.diff(found.first), many):
        return False
    deep = places.stage[found.place] > 0
    before = np.flatnonzero(deep) - many[found.place[deep]]
    top = places.replica[found.place[~deep]] * len(tasks) + found.task[~deep]
    return np.array_equal(found.task[deep], found.task[before]) and np.array_equal(
        np.sort(top), np.sort(replica * len(tasks) + number)
    )


def _in_turn(found: Operations, forward: Operations, backward: Operations) -> bool:
    """Whether each place goes forward before backward in every task; it has each of them once."""
    one, two = np.flatnonzero(~found.backward), np.flatnonzero(found.backward)
    if not np.array_equal(forward.task, backward.task):
        one, two = (at[np.lexsort((found.task[at], found.place[at]))] for at in (one, two))
    return bool((one < two).all())


def _named(lists: Lists, tasks: tuple[Task, ...], kinds: Kinds) -> Iterator[str]:
    """What `_complete` found wrong, by replica, stage and task."""
    mine: dict[int, list[int]] = defaultdict(list)
    for task in tasks:
        for replica in task.replicas:
            mine[replica].append(task.index)
    faults = [fault for place in sorted(lists) for fault in _own(place, lists, mine[place[0]], kinds)]
    yield from faults or [fault for place in sorted(lists) for fault in _order(place, lists)]


def _own(place: Place, lists: Lists, tasks: list[int], kinds: Kinds) -> list[str]:
    """Demands each of the replica's tasks once of every kind, forward first, and nothing else."""
    mine = lists[place]
    wanted = sorted((kind, task) for task in tasks for kind in kinds)
    have = sorted((o.kind, o.task) for o in mine)
    if have != wanted:
        odd = sorted(set(have) ^ set(wanted)) or [x for x in have if have.count(x) > 1]
        kind, task = odd[0]
        return [f"{_name(place, lists)}: operation {kind} of task {task} is missing, foreign or repeated"]
    at = {(o.kind, o.task): i for i, o in enumerate(mine)}
    late = [t for kind, t in at if kind == "B" and at["F", t] > at["B", t]]
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


def _mixed_waves(places: Places, found: Operations, tasks: tuple[Task, ...]) -> Iterator[str]:
    """Demands that waves rise along the tasks and along every list: a wave starts once the one before has ended."""
    wave = np.array([task.wave or 0 for task in tasks], dtype=np.int64)
    for at in np.flatnonzero(np.diff(wave) < 0).tolist()[:1]:
        yield f"task {at + 1} is of wave {wave[at + 1]}, task {at} before it of wave {wave[at]}; waves rise along the order"
    own = wave[found.task]
    for at in np.flatnonzero((np.diff(own) < 0) & (np.diff(found.place) == 0)).tolist()[:1]:
        replica, stage = places.name(int(found.place[at]))
        yield (
            f"replica {replica}, stage {stage}: task {found.task[at + 1]} of wave {own[at + 1]} is behind task "
            f"{found.task[at]} of wave {own[at]}; a wave starts once all tasks of the one before have ended"
        )


def _hangs(places: Places, found: Operations, lists: Lists, tasks: tuple[Task, ...]) -> list[str]:
    """Names what waits for ever in the first wave that hangs."""
    for _, _, walk in walk_waves(places, found, tasks, np.zeros(found.task.size)):
        if walk.stuck:
            return [_hang(each, lists, tasks) for each in walk.stuck]
    return []


def _name(place: Place, lists: Lists) -> str:
    replica, stage = place
    return f"replica {replica}, stage {stage}" if (replica, 1) in lists else f"replica {replica}"


def _hang(waiting: Waiting, lists: Lists, tasks: tuple[Task, ...]) -> str:
    meeting, here = waiting.meeting, waiting.here
    task = tasks[meeting.task]
    absent = sorted(set(meeting.places(task)) - set(here))
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
