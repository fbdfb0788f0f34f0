"""Checks a placement before it is committed: a plan that could hang or lose a token is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import compress, groupby, pairwise
from operator import attrgetter

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from coxswain.layout import Layout
from coxswain.plan.chunks import ring_slices
from coxswain.plan.kinds import kinds_of
from coxswain.plan.pipelines.replay import replay
from coxswain.plan.values import Placement, Task


def validate(
    placement: Placement, lengths: Sequence[int], layout: Layout, capacity: int | Sequence[int], max_degree: int,
    key_heads: int = 1,
) -> list[str]:  # fmt: skip
    """Returns everything that is wrong with the placement, naming replica and sequence.

    `capacity`: tokens of a task on every replica, or on each. `key_heads`: that members of a ring can exchange.
    """
    room = [capacity] * len(layout.replicas) if isinstance(capacity, int) else capacity
    faults, kinds = [*_order(placement), *_waves(placement)], kinds_of(layout)
    others, whole = _but_packs(placement.tasks, lengths, room)
    for task in others:
        found = [*_members(task, kinds, max_degree)] or [*_heads(task, key_heads), *_slices(task, lengths, room)]
        faults += [f"task {task.index} ({task.kind}): {fault}" for fault in found]
        whole += [] if found else {s.sequence for s in task.slices}
    if faults or sorted(whole) != list(range(len(lengths))):
        faults += _coverage(placement, lengths)
    return faults or replay(placement, layout)


def _but_packs(tasks: Sequence[Task], lengths: Sequence[int], room: Sequence[int]) -> tuple[list[Task], list[int]]:
    """The tasks to be looked at closely, and the sequences of the others: packs without fault, which most are."""
    lone = [t.kind == "pack" and len(t.replicas) == 1 and bool(t.slices) and t.ulysses is UNSET for t in tasks]
    packs, good = [*compress(tasks, lone)], np.array(lone, dtype=np.bool_)
    if packs:
        good[good] = _are_right(packs, lengths, room)
    whole = [s.sequence for t in compress(tasks, good.tolist()) for s in t.slices]
    return [*compress(tasks, (~good).tolist())], whole


def _are_right(packs: Sequence[Task], lengths: Sequence[int], room: Sequence[int]) -> NDArray[np.bool_]:
    """Which of these packs, of one replica each, have whole sequences for which their replica has room."""
    slices, count = [s for t in packs for s in t.slices], [len(t.slices) for t in packs]
    replica, begins = np.array([t.replicas[0] for t in packs]), np.cumsum([0, *count[:-1]])
    sequence, stop = np.array([s.sequence for s in slices]), np.array([s.stop for s in slices])
    known = (sequence >= 0) & (sequence < len(lengths))
    right = known & (stop == np.array([*lengths, 0])[np.where(known, sequence, -1)])
    right &= np.array([s.replica for s in slices]) == np.repeat(replica, count)
    right &= np.array([s.start for s in slices]) == 0
    there = (replica >= 0) & (replica < len(room))
    most = np.array([*room, 0])[np.where(there, replica, -1)]
    found: NDArray[np.bool_] = there & (np.add.reduceat(stop, begins) <= most) & np.logical_and.reduceat(right, begins)
    return found


def _order(placement: Placement) -> Iterator[str]:
    for place, task in enumerate(placement.tasks):
        if task.index != place:
            yield f"task at place {place} has index {task.index}; tasks must be numbered in their one global order"


def _waves(placement: Placement) -> Iterator[str]:
    """Demands waves 0, 1, ... that rise along the global order; `replay` demands it of the lists."""
    waves = [task.wave or 0 for task in placement.tasks]
    for at, (before, wave) in enumerate(pairwise([0, *waves])):
        if not before <= wave <= before + (at > 0):
            yield f"task {at} is of wave {wave} after one of wave {before}; waves begin at 0 and rise by 1 along the order"
            return


def _members(task: Task, kinds: Sequence[int], max_degree: int) -> Iterator[str]:
    degree = len(task.replicas)
    for replica in task.replicas:
        if not 0 <= replica < len(kinds):
            yield f"replica {replica} does not exist; the layout has {len(kinds)}"
            return
    if len(set(task.replicas)) != degree:
        yield f"replicas {list(task.replicas)} are not distinct"
    if task.kind == "pack" and degree != 1:
        yield f"a pack has one replica, not {degree}"
    if task.kind == "ring" and not 2 <= degree <= max_degree:
        yield f"a ring has between 2 and {max_degree} replicas, not {degree}"
    if len({kinds[r] for r in task.replicas}) > 1:
        yield f"replicas {list(task.replicas)} differ in layer split or tensor degree; a ring needs them equal"


def _heads(task: Task, key_heads: int) -> Iterator[str]:
    """Demands head groups of equal size, each member of which gets whole key heads."""
    size, degree = task.ulysses, len(task.replicas)
    if size is UNSET:
        return
    if task.kind != "ring" or not 2 <= size <= degree or degree % size:
        yield f"head groups of {size} do not divide its {degree} replicas"
    elif key_heads % size:
        yield f"head groups of {size} do not divide the {key_heads} key heads of a device"


def _slices(task: Task, lengths: Sequence[int], room: Sequence[int]) -> Iterator[str]:
    if not task.slices:
        yield "it has no slices"
        return
    for s in task.slices:
        if not 0 <= s.sequence < len(lengths):
            yield f"sequence {s.sequence} does not exist; the step has {len(lengths)}"
            return
    yield from _pack(task, lengths) if task.kind == "pack" else _ring(task, lengths)
    held: Counter[int] = Counter()
    for s in task.slices:
        held[s.replica] += s.stop - s.start
    for replica, tokens in held.items():
        if replica in task.replicas and tokens > room[replica]:
            sequence = task.slices[0].sequence
            yield f"sequence {sequence}: replica {replica} would hold {tokens} tokens, but has room for {room[replica]}"


def _pack(task: Task, lengths: Sequence[int]) -> Iterator[str]:
    for s in task.slices:
        if s.replica != task.replicas[0]:
            yield f"sequence {s.sequence} is given to replica {s.replica}, which is not the pack's"
        if (s.start, s.stop) != (0, lengths[s.sequence]):
            yield f"sequence {s.sequence}: tokens [{s.start}, {s.stop}) of {lengths[s.sequence]}; a pack holds whole sequences"


def _ring(task: Task, lengths: Sequence[int]) -> Iterator[str]:
    """Demands the chunks of `ring_slices`, sequence by sequence."""
    sequences = [sequence for sequence, _ in groupby(task.slices, key=attrgetter("sequence"))]
    again = [sequence for sequence, runs in Counter(sequences).items() if runs > 1]
    if again:
        yield f"sequence {again[0]}: its slices are not together"
        return
    wanted = ring_slices(sequences, lengths, task.replicas)
    places = Counter[int]()
    for have, want in zip(task.slices, wanted, strict=False):
        if have != want:
            yield (
                f"sequence {want.sequence}: slice {places[want.sequence]} is [{have.start}, {have.stop}) on replica "
                f"{have.replica}; head-tail chunks over {list(task.replicas)} want [{want.start}, {want.stop}) on "
                f"replica {want.replica}"
            )
            return
        places[want.sequence] += 1
    if len(task.slices) != len(wanted):
        yield f"sequence {sequences[-1]}: {len(task.slices)} slices instead of {len(wanted)}"


def _coverage(placement: Placement, lengths: Sequence[int]) -> list[str]:
    """Demands every token exactly once: a sequence's slices must join from 0 to its length."""
    pieces: dict[int, list[tuple[int, int]]] = {}
    for task in placement.tasks:
        for s in task.slices:
            pieces.setdefault(s.sequence, []).append((s.start, s.stop))
    faults = []
    for sequence, length in enumerate(lengths):
        at = 0
        for start, stop in sorted(pieces.get(sequence, [])):
            if start != at or stop <= start:
                faults.append(
                    f"sequence {sequence}: tokens [{min(start, at)}, {max(start, at)}) are missing or computed twice"
                )
                break
            at = stop
        else:
            if at != length:
                faults.append(f"sequence {sequence}: covered up to token {at} of {length}")
    return faults
