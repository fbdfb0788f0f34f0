"""Checks a placement before it is committed: a plan that could hang or lose a token is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from operator import attrgetter

from msgspec import UNSET

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
    faults, kinds, whole = [*_order(placement), *_waves(placement)], kinds_of(layout), list[int]()
    for task in placement.tasks:
        if (sequences := _whole(task, lengths, room)) is None:
            found = [*_members(task, kinds, max_degree)] or [*_heads(task, key_heads), *_slices(task, lengths, room)]
            faults += [f"task {task.index} ({task.kind}): {fault}" for fault in found]
            sequences = [] if found else [*{s.sequence for s in task.slices}]
        whole += sequences
    if faults or sorted(whole) != list(range(len(lengths))):
        faults += _coverage(placement, lengths)
    return faults or replay(placement, layout)


def _whole(task: Task, lengths: Sequence[int], room: Sequence[int]) -> list[int] | None:
    """The sequences of a pack without fault, the usual task; None: to be looked at closely."""
    slices, replica = task.slices, task.replicas[0] if task.replicas else -1
    if task.kind != "pack" or len(task.replicas) != 1 or not slices or task.ulysses is not UNSET:
        return None
    if not 0 <= replica < len(room) or sum([s.stop for s in slices]) > room[replica]:
        return None
    sequences = [s.sequence for s in slices]
    if min(sequences) < 0 or max(sequences) >= len(lengths):
        return None
    right = (s.replica == replica and not s.start and s.stop == lengths[s.sequence] for s in slices)
    return sequences if all(right) else None


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
