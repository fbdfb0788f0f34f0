"""The validator refuses every plan that could hang, lose a token or overfill a replica."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import pytest
from msgspec.structs import replace

from coxswain.layout import Device, Layout, Replica, Stage
from coxswain.plan.pipelines.operations import operations
from coxswain.plan.validator import validate
from coxswain.plan.values import Operation, Placement, Slice, Task
from tests.unit.plan_cases import given, layout_of, planned

REPLICAS, CAPACITY, MAX_DEGREE = 8, 64, 6
Mutation = Callable[[Placement, random.Random], Placement]
MUTATIONS: dict[str, tuple[Mutation, str]] = {}


def a_step(rng: random.Random) -> list[int]:
    return [rng.choice([rng.randint(1, 64), rng.randint(65, 384)]) for _ in range(rng.randint(12, 30))] + [200, 300]


def faults(placement: Placement, lengths: list[int], layout: Layout | None = None) -> list[str]:
    return validate(placement, lengths, layout or layout_of(REPLICAS), CAPACITY, MAX_DEGREE)


def mutation(name: str, says: str) -> Callable[[Mutation], Mutation]:
    """Registers a fault and what the validator must say of it, among other things."""

    def keep(mutate: Mutation) -> Mutation:
        MUTATIONS[name] = mutate, says
        return mutate

    return keep


def a_task(placement: Placement, rng: random.Random, kind: str = "") -> Task:
    return rng.choice([t for t in placement.tasks if kind in ("", t.kind)])


def with_task(placement: Placement, task: Task) -> Placement:
    return replace(placement, tasks=tuple(task if t.index == task.index else t for t in placement.tasks))


def with_lists(
    placement: Placement, change: Callable[[int, tuple[Operation, ...]], tuple[Operation, ...]]
) -> Placement:
    lists = tuple(replace(o, operations=change(o.replica, o.operations)) for o in placement.operations)
    return replace(placement, operations=lists)


@mutation("a slice is lost", "sequence")
def _(p: Placement, rng: random.Random) -> Placement:
    task = a_task(p, rng)
    at = rng.randrange(len(task.slices))
    return with_task(p, replace(task, slices=task.slices[:at] + task.slices[at + 1 :]))


@mutation("a slice is computed twice", "are missing or computed twice")
def _(p: Placement, rng: random.Random) -> Placement:
    task = a_task(p, rng)
    return with_task(p, replace(task, slices=(*task.slices, rng.choice(task.slices))))


@mutation("a slice is cut short by a token", "token")
def _(p: Placement, rng: random.Random) -> Placement:
    task = a_task(p, rng)
    at = rng.randrange(len(task.slices))
    s = task.slices[at]
    short = Slice(s.replica, s.sequence, s.start, s.stop - 1)
    return with_task(p, replace(task, slices=(*task.slices[:at], short, *task.slices[at + 1 :])))


@mutation("a border between two members moves by a token", "head-tail chunks over")
def _(p: Placement, rng: random.Random) -> Placement:
    task = a_task(p, rng, "ring")
    a, b = task.slices[0], next(s for s in task.slices if s.start == task.slices[0].stop)
    moved = {a: Slice(a.replica, a.sequence, a.start, a.stop + 1), b: Slice(b.replica, b.sequence, b.start + 1, b.stop)}
    return with_task(p, replace(task, slices=tuple(moved.get(s, s) for s in task.slices)))


@mutation("two members of a ring change places", "head-tail chunks over")
def _(p: Placement, rng: random.Random) -> Placement:
    task = a_task(p, rng, "ring")
    one, two, *rest = task.replicas
    return with_task(p, replace(task, replicas=(two, one, *rest)))


@mutation("a member appears twice", "are not distinct")
def _(p: Placement, rng: random.Random) -> Placement:
    task = a_task(p, rng, "ring")
    return with_task(p, replace(task, replicas=(task.replicas[1], *task.replicas[1:])))


@mutation("a replica does not exist", "does not exist; the layout has 8")
def _(p: Placement, rng: random.Random) -> Placement:
    task = a_task(p, rng)
    return with_task(p, replace(task, replicas=(rng.choice([-1, REPLICAS]), *task.replicas[1:])))


@mutation("a slice goes to a replica outside the task", "replica")
def _(p: Placement, rng: random.Random) -> Placement:
    task = rng.choice([t for t in p.tasks if len(t.replicas) < REPLICAS])
    outside = rng.choice([r for r in range(REPLICAS) if r not in task.replicas])
    s = task.slices[-1]
    return with_task(p, replace(task, slices=(*task.slices[:-1], Slice(outside, s.sequence, s.start, s.stop))))


@mutation("a sequence does not exist", "sequence 10000 does not exist")
def _(p: Placement, rng: random.Random) -> Placement:
    task = a_task(p, rng)
    ghosts = tuple(Slice(s.replica, 10_000, s.start, s.stop) for s in task.slices)
    return with_task(p, replace(task, slices=ghosts))


@mutation("a task is dropped with its operations", "covered up to token 0")
def _(p: Placement, rng: random.Random) -> Placement:
    lost = a_task(p, rng)
    return renumbered(p, [t for t in p.tasks if t is not lost])


@mutation("a task is run twice", "missing or computed twice")
def _(p: Placement, rng: random.Random) -> Placement:
    return renumbered(p, [*p.tasks, a_task(p, rng)])


@mutation("two tasks have the same index", "tasks must be numbered in their one global order")
def _(p: Placement, rng: random.Random) -> Placement:
    at = rng.randrange(1, len(p.tasks))
    return replace(p, tasks=(*p.tasks[:at], replace(p.tasks[at], index=at - 1), *p.tasks[at + 1 :]))


@mutation("two packs exchange their numbers", "tasks must be numbered in their one global order")
def _(p: Placement, rng: random.Random) -> Placement:
    """Operations follow the numbers, so that nothing else is wrong."""
    one, two = rng.sample([t for t in p.tasks if t.kind == "pack"], 2)
    number = {one.index: two.index, two.index: one.index}
    tasks = tuple(replace(t, index=number.get(t.index, t.index)) for t in p.tasks)
    return replace(p, tasks=tasks, operations=operations(layout_of(REPLICAS), tasks))


@mutation("a ring becomes a pack", "a pack has one replica")
def _(p: Placement, rng: random.Random) -> Placement:
    return with_task(p, replace(a_task(p, rng, "ring"), kind="pack"))


@mutation("a pack has a part of a sequence", "a pack holds whole sequences")
def _(p: Placement, rng: random.Random) -> Placement:
    """Its other part is in a pack of its own, so that every token is computed once."""
    task = rng.choice([t for t in p.tasks if t.kind == "pack" and any(s.stop > 1 for s in t.slices)])
    s = next(s for s in task.slices if s.stop > 1)
    head, tail = Slice(s.replica, s.sequence, 0, 1), Slice(s.replica, s.sequence, 1, s.stop)
    whole = replace(task, slices=tuple(head if x == s else x for x in task.slices))
    return renumbered(p, [whole if t is task else t for t in p.tasks] + [replace(task, slices=(tail,))])


@mutation("a pack's sequence is given to another replica", "which is not the pack's")
def _(p: Placement, rng: random.Random) -> Placement:
    task = a_task(p, rng, "pack")
    s = task.slices[0]
    moved = Slice((s.replica + 1) % REPLICAS, s.sequence, s.start, s.stop)
    return with_task(p, replace(task, slices=(moved, *task.slices[1:])))


@mutation("a ring takes the sequence of another one too", "missing or computed twice")
def _(p: Placement, rng: random.Random) -> Placement:
    one, two = rng.sample([t for t in p.tasks if t.kind == "ring"], 2)
    return with_task(p, replace(one, slices=(*one.slices, *two.slices)))


@mutation("a ring lacks its last slice", "slices instead of")
def _(p: Placement, rng: random.Random) -> Placement:
    task = a_task(p, rng, "ring")
    return with_task(p, replace(task, slices=task.slices[:-1]))


@mutation("a task has no slices", "it has no slices")
def _(p: Placement, rng: random.Random) -> Placement:
    return with_task(p, replace(a_task(p, rng), slices=()))


@mutation("a replica has two lists", "operations are listed for (replica, stage)")
def _(p: Placement, rng: random.Random) -> Placement:
    return replace(p, operations=(*p.operations, p.operations[0]))


@mutation("a list is that of a replica that does not exist", "operations are listed for (replica, stage)")
def _(p: Placement, rng: random.Random) -> Placement:
    return replace(p, operations=(*p.operations[:-1], replace(p.operations[-1], replica=REPLICAS)))


@mutation("an operation is repeated", "is missing, foreign or repeated")
def _(p: Placement, rng: random.Random) -> Placement:
    return with_lists(p, lambda r, ops: (*ops, ops[-1]) if ops else ops)


@mutation("two packs are merged beyond the capacity", "but has room for 64")
def _(p: Placement, rng: random.Random) -> Placement:
    full = max((t for t in p.tasks if t.kind == "pack"), key=lambda t: sum(s.stop for s in t.slices))
    others = [t for t in p.tasks if t.kind == "pack" and t is not full]
    need = CAPACITY - sum(s.stop for s in full.slices)
    other = next(t for t in others if sum(s.stop for s in t.slices) > need)
    moved = tuple(Slice(full.replicas[0], s.sequence, s.start, s.stop) for s in other.slices)
    merged = replace(full, slices=full.slices + moved)
    return renumbered(p, [merged if t is full else t for t in p.tasks if t is not other])


@mutation("a pack becomes a ring of one", "between 2 and 6 replicas, not 1")
def _(p: Placement, rng: random.Random) -> Placement:
    return with_task(p, replace(a_task(p, rng, "pack"), kind="ring"))


@mutation("one replica swaps two of its rings", "hang: replica")
def _(p: Placement, rng: random.Random) -> Placement:
    rings = [t for t in p.tasks if t.kind == "ring"]
    one, two = next(
        (a, b) for a in rings for b in rings if a.index < b.index and len({*a.replicas} & {*b.replicas}) > 1
    )
    loser = min({*one.replicas} & {*two.replicas})
    swap = {one.index: two.index, two.index: one.index}
    return with_lists(
        p, lambda r, ops: tuple(Operation(o.kind, swap.get(o.task, o.task)) for o in ops) if r == loser else ops
    )


@mutation("a backward comes before its forward", "goes backward before forward")
def _(p: Placement, rng: random.Random) -> Placement:
    return with_lists(p, lambda r, ops: (ops[1], ops[0], *ops[2:]) if len(ops) > 1 else ops)


@mutation("an operation is missing", "is missing, foreign or repeated")
def _(p: Placement, rng: random.Random) -> Placement:
    return with_lists(p, lambda r, ops: ops[:-1])


@mutation("an operation of a task that the replica has no part in", "is missing, foreign or repeated")
def _(p: Placement, rng: random.Random) -> Placement:
    task = rng.choice([t for t in p.tasks if len(t.replicas) < REPLICAS])
    loser = next(r for r in range(REPLICAS) if r not in task.replicas)
    extra = (Operation("F", task.index), Operation("B", task.index))
    return with_lists(p, lambda r, ops: ops + extra if r == loser else ops)


@mutation("a replica has no list", "operations are listed for (replica, stage)")
def _(p: Placement, rng: random.Random) -> Placement:
    return replace(p, operations=p.operations[:-1])


def in_waves(placement: Placement) -> Placement:
    """The same tasks, a third of them in each of three waves."""
    tasks = placement.tasks
    return replace(placement, tasks=tuple(replace(t, wave=3 * t.index // len(tasks)) for t in tasks))


@mutation("a wave begins again after a later one", "waves begin at 0 and rise by 1")
def _(p: Placement, rng: random.Random) -> Placement:
    waved = in_waves(p)
    return with_task(waved, replace(rng.choice([t for t in waved.tasks if t.wave == 2]), wave=0))


@mutation("the first wave is not wave 0", "waves begin at 0 and rise by 1")
def _(p: Placement, rng: random.Random) -> Placement:
    return replace(p, tasks=tuple(replace(t, wave=1 + rng.randint(0, 3)) for t in p.tasks))


@mutation("a wave is left out", "waves begin at 0 and rise by 1")
def _(p: Placement, rng: random.Random) -> Placement:
    return replace(p, tasks=tuple(replace(t, wave=2 * (t.wave or 0)) for t in in_waves(p).tasks))


@mutation("a replica runs a task of a later wave first", "starts once all tasks of the one before have ended")
def _(p: Placement, rng: random.Random) -> Placement:
    waved = in_waves(p)
    wave = {t.index: t.wave for t in waved.tasks}
    early = rng.choice([o.replica for o in p.operations if len({wave[x.task] for x in o.operations}) > 1])
    return with_lists(waved, lambda r, ops: (*ops[2:], *ops[:2]) if r == early else ops)


@mutation("a task goes backward in a wave after its own", "starts once all tasks of the one before have ended")
def _(p: Placement, rng: random.Random) -> Placement:
    waved = in_waves(p)
    wave = {t.index: t.wave for t in waved.tasks}
    late = rng.choice([o.replica for o in p.operations if len({wave[x.task] for x in o.operations}) > 1])
    return with_lists(waved, lambda r, ops: (ops[0], *ops[2:], ops[1]) if r == late else ops)


def renumbered(placement: Placement, tasks: list[Task]) -> Placement:
    numbered = tuple(replace(t, index=i) for i, t in enumerate(tasks))
    return replace(placement, tasks=numbered, operations=operations(layout_of(REPLICAS), numbered))


@cache
def good_plan(seed: int) -> tuple[list[int], Placement]:
    lengths = a_step(random.Random(seed))
    return lengths, planned("makespan", lengths, **given(REPLICAS, CAPACITY, max_degree=MAX_DEGREE))


@pytest.mark.parametrize("kind", sorted(MUTATIONS))
def test_a_plan_with_one_fault_is_refused_for_that_fault(kind: str) -> None:
    mutate, says = MUTATIONS[kind]
    for seed in range(25):
        lengths, good = good_plan(seed)
        assert faults(good, lengths) == []
        bad = mutate(good, random.Random(seed))
        assert bad != good
        assert any(says in fault for fault in faults(bad, lengths)), f"seed {seed}: {faults(bad, lengths)}"


def test_a_plan_in_waves_that_rise_is_good() -> None:
    lengths, good = good_plan(0)
    assert faults(in_waves(good), lengths) == []


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        (lambda ops: ops[:3], "B of task 1"),
        (lambda ops: ops[1:], "F of task 0"),
        (lambda ops: (*ops, ops[2]), "F of task 1"),
        (lambda ops: (*ops, Operation("B", 7)), "B of task 7"),
    ],
)
def test_the_operation_that_is_wrong_is_named(change: Callable[..., tuple[Operation, ...]], operation: str) -> None:
    bad = with_lists(planned("naive", [60, 60], **given(1, CAPACITY)), lambda r, ops: change(ops))
    expected = f"replica 0: operation {operation} is missing, foreign or repeated"
    assert validate(bad, [60, 60], layout_of(1), CAPACITY, 2) == [expected]


def crossed() -> Placement:
    """Two rings over the same two replicas, walked in opposite order."""
    good = planned("naive", [100, 100], **given(2, CAPACITY))
    return with_lists(good, lambda r, ops: ops if r == 0 else (*ops[2:], *ops[:2]))


def test_a_hang_is_reported_with_replica_task_and_sequence() -> None:
    found = validate(crossed(), [100, 100], layout_of(2), CAPACITY, 2)
    assert found[0] == "hang: replica 0 waits in F of task 0 (sequence 0) for replica 1, which is at another operation"


def test_a_ring_over_unlike_replicas_is_refused() -> None:
    halves = (Stage((Device(0, 0),), 0, 1), Stage((Device(0, 1),), 1, 2))
    layout = Layout((Replica(halves), Replica((Stage((Device(1, 0),), 0, 2),))))
    good = planned("naive", [100], **given(2, CAPACITY))
    assert "differ in layer split" in validate(good, [100], layout, CAPACITY, 2)[0]


def test_a_degree_above_the_maximum_is_refused_and_the_maximum_is_not() -> None:
    good = planned("naive", [200], **given(4, CAPACITY))
    assert validate(good, [200], layout_of(4), 50, 4) == []
    assert "between 2 and 3 replicas, not 4" in validate(good, [200], layout_of(4), CAPACITY, 3)[0]


def test_an_overfull_member_is_named_with_its_sequence() -> None:
    good = planned("naive", [200], **given(4, CAPACITY))
    assert "sequence 0: replica 0 would hold 50 tokens" in validate(good, [200], layout_of(4), 49, 4)[0]


def packed_ring() -> tuple[list[int], Placement]:
    lengths = [5, 7, 9, 100]
    placement = planned("static", lengths, **given(2, CAPACITY))
    assert [len({s.sequence for s in t.slices}) for t in placement.tasks] == [4]
    return lengths, placement


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s, None),
        (lambda s: (*s[1:], s[0]), "sequence 0: its slices are not together"),
        (lambda s: (*s[4:8], *s[:4], *s[8:]), "want [5, 7) on replica 0"),
        (lambda s: (*s[:4], s[5], s[4], *s[6:]), "sequence 1: slice 0 is [6, 7) on replica 0"),
        (lambda s: s[:-1], "sequence 3: 15 slices instead of 16"),
    ],
    ids=["as made", "scattered", "in another order", "tail before head", "cut off"],
)
def test_a_ring_of_several_sequences_has_the_chunks_of_each(
    change: Callable[[tuple[Slice, ...]], tuple[Slice, ...]], says: str | None
) -> None:
    lengths, good = packed_ring()
    task = replace(good.tasks[0], slices=change(good.tasks[0].slices))
    found = faults(with_task(good, task), lengths, layout_of(2))
    assert any(says in fault for fault in found) if says else found == []


LENGTHS = [64, 20]
FIRST = Task(0, "pack", (0,), (Slice(0, 0, 0, 64),))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (replace(FIRST, replicas=(0, 1)), "a pack has one replica, not 2"),
        (replace(FIRST, ulysses=2), "head groups of 2 do not divide its 1 replicas"),
        (replace(FIRST, slices=(Slice(0, 0, 1, 64),)), "tokens [1, 64) of 64; a pack holds whole sequences"),
        (replace(FIRST, slices=(Slice(0, -2, 0, 64),)), "sequence -2 does not exist; the step has 2"),
        (replace(FIRST, slices=(Slice(1, 0, 0, 64),)), "given to replica 1, which is not the pack's"),
        (replace(FIRST, wave=1), "waves begin at 0"),
    ],
)
def test_a_pack_with_one_fault_is_refused_beside_packs_without(changed: Task, says: str) -> None:
    layout, second = layout_of(2), Task(1, "pack", (1,), (Slice(1, 1, 0, 20),), wave=changed.wave)
    for first in (FIRST, changed):
        tasks = (first, second if first is changed else replace(second, wave=FIRST.wave))
        lists = operations(layout, (FIRST, second))
        found = faults(Placement("x", 2, CAPACITY, tasks, lists, 1.0, 1.0, 1.0, 0.0), LENGTHS, layout)
        assert not found if first is FIRST else any(says in fault for fault in found), found


@pytest.mark.parametrize(
    ("room", "says"),
    [
        ([64, 20], []),
        ([63, 64], ["task 0 (pack): sequence 0: replica 0 would hold 64 tokens, but has room for 63"]),
        ([64, 19], ["task 1 (pack): sequence 1: replica 1 would hold 20 tokens, but has room for 19"]),
    ],
)
def test_a_pack_may_fill_its_own_replica_and_no_more(room: list[int], says: list[str]) -> None:
    layout, tasks = layout_of(2), (FIRST, Task(1, "pack", (1,), (Slice(1, 1, 0, 20),)))
    placement = Placement("x", 2, CAPACITY, tasks, operations(layout, tasks), 1.0, 1.0, 1.0, 0.0)
    assert validate(placement, LENGTHS, layout, room, MAX_DEGREE) == says


@pytest.mark.parametrize("small", [0, 1])
def test_each_member_of_a_ring_may_fill_its_own_room_and_no_more(small: int) -> None:
    lengths, good = packed_ring()
    held = [sum(s.stop - s.start for s in good.tasks[0].slices if s.replica == replica) for replica in range(2)]
    assert validate(good, lengths, layout_of(2), held, MAX_DEGREE) == []
    room = [tokens - (replica == small) for replica, tokens in enumerate(held)]
    (fault,) = validate(good, lengths, layout_of(2), room, MAX_DEGREE)
    assert fault.endswith(f"replica {small} would hold {held[small]} tokens, but has room for {room[small]}")
