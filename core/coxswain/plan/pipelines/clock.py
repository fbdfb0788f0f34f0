"""When each operation of a plan's lists begins and ends, every stage running its list as soon as it can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coxswain.layout import Layout
from coxswain.plan.pipelines.simulation import FORWARD, loads
from coxswain.plan.values import Operation, StageOperations, Task

Seat = tuple[int, int]  # replica, stage
Span = tuple[float, float]


def times(
    lists: Sequence[StageOperations], tasks: Sequence[Task], shares: Mapping[Seat, float]
) -> dict[Seat, tuple[Span, ...]]:
    """Returns (start, stop) of each stage's operations, in seconds and in the order of its list.

    A forward waits for the stage before it, a backward for the stage behind, a ring for all its members. Sends cost no
    time and wait for no receive, so a plan ends here no later than in its simulation. `shares`: the load of each stage,
    over that of its replica's slowest. ValueError where the lists hang.
    """
    clock = _Clock({(x.replica, x.stage): x.operations for x in lists}, {t.index: t for t in tasks}, shares)
    waiting = True
    while waiting:
        waiting = sum(map(clock.advance, clock.lists)) > 0
    if any(len(clock.spans[seat]) < len(operations) for seat, operations in clock.lists.items()):
        raise ValueError("these lists hang: an operation waits for one that waits for it")
    return {seat: tuple(spans) for seat, spans in clock.spans.items()}


def stage_loads(layout: Layout, loss: float) -> dict[Seat, float]:
    """What `times` needs of a layout. `loss`: what the last stage does besides its layers, in layers."""
    found = [loads(replica, loss) for replica in layout.replicas]
    return {(r, s): load / max(parts) for r, parts in enumerate(found) for s, load in enumerate(parts)}


@dataclass(slots=True)
class _Clock:
    lists: dict[Seat, tuple[Operation, ...]]
    tasks: dict[int, Task]
    shares: Mapping[Seat, float]
    spans: dict[Seat, list[Span]] = field(default_factory=dict)
    done: dict[tuple[Operation, Seat], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spans = {seat: [] for seat in self.lists}

    def advance(self, seat: Seat) -> bool:
        """Runs what the stage can run now, with the other members of a ring; returns whether that was anything."""
        begun = len(self.spans[seat])
        while (operation := self._next(seat)) is not None:
            members = [(replica, seat[1]) for replica in self.tasks[operation.task].replicas]
            ready = [self._ready(member, operation) for member in members]
            if None in ready:
                break
            start = max(r for r in ready if r is not None)
            for member in members:
                self._run(member, operation, start)
        return len(self.spans[seat]) > begun

    def _next(self, seat: Seat) -> Operation | None:
        at, operations = len(self.spans[seat]), self.lists[seat]
        return operations[at] if at < len(operations) else None

    def _ready(self, seat: Seat, operation: Operation) -> float | None:
        """When the stage is free and has the operation's input; None: not yet known."""
        if self._next(seat) != operation:
            return None
        free, came = self.spans[seat][-1][1] if self.spans[seat] else 0.0, self._input(seat, operation)
        return None if came is None else max(free, came)

    def _input(self, seat: Seat, operation: Operation) -> float | None:
        replica, stage = seat
        before = (replica, stage - 1 if operation.kind == "F" else stage + 1)
        if before in self.lists:
            return self.done.get((operation, before))
        return 0.0 if operation.kind == "F" else self.done.get((Operation("F", operation.task), seat))

    def _run(self, seat: Seat, operation: Operation, start: float) -> None:
        share = FORWARD if operation.kind == "F" else 1 - FORWARD
        stop = start + self.tasks[operation.task].seconds * share * self.shares[seat]
        self.spans[seat].append((start, stop))
        self.done[operation, seat] = stop
