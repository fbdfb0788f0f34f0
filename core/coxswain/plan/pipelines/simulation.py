"""Orders forwards and backwards of pipelines: one event simulation over the stages of all replicas.

The simulation obeys the communicator that later runs its lists (`replay.py`): between two operations a stage exchanges
one batch, what the first sends and what the second receives, and a send waits for its receive. So a list that it makes
cannot hang.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain
from typing import Literal

from coxswain.layout import Layout, Replica
from coxswain.plan.values import Operation, StageOperations, Task

Kind = Literal["F", "B"]
FORWARD = 1 / 3  # of a task's seconds
TRIES = 10  # simulations: each drains one ring more, the last but one all of them, the last has one task in flight


@dataclass(slots=True)
class StageState:
    """One stage of one replica. Between two operations it has chosen the next one only once its input is there."""

    replica: int
    stage: int
    last: bool
    most: int  # graphs in flight
    load: float  # of the replica's slowest stage
    queue: list[int]  # its tasks in global order
    forward: int = 0  # of the queue done
    backward: int = 0
    leaving: Kind | None = None  # the result of the last operation, as long as its receiver has not taken it
    chosen: Kind | None = None
    running: bool = False
    done: list[Operation] = field(default_factory=list)

    def task(self, kind: Kind) -> int:
        """The next task of a kind; -1 behind the last one."""
        at = self.forward if kind == "F" else self.backward
        return self.queue[at] if at < len(self.queue) else -1

    def sent(self, kind: Kind) -> int:
        """The task whose result waits for its receiver; -1: none of this kind."""
        if self.leaving != kind:
            return -1
        return self.queue[(self.forward if kind == "F" else self.backward) - 1]


def schedule(
    layout: Layout, tasks: Sequence[Task], loss: float = 0.0, in_flight: int = 0, tries: int = TRIES
) -> tuple[StageOperations, ...]:
    """Orders the operations of all stages. `loss`: what the last stage does besides its layers, in layers.

    A stage keeps at most as many graphs as there are stages from it to the end (1F1B), and at most `in_flight` if that
    is not 0. Where rings of a step wait for each other in a circle, some of them start only once their members are
    empty; with one task in flight a replica, no circle is possible.
    """
    drained, rings = set[int](), {t.index for t in tasks if len(t.replicas) > 1}
    for left in reversed(range(tries)):
        simulation = Simulation(layout, tasks, loss, in_flight if left else 1, drained)
        if simulation.run():
            break
        waiting = simulation.waiting() & rings - drained
        drained = drained | {min(waiting)} if waiting and left > 2 else rings
    return simulation.lists()


def loads(replica: Replica, loss: float) -> list[float]:
    """Work of each stage on one of its devices, as a part of the whole model's work."""
    whole = replica.stages[-1].stop + loss
    layers = [float(stage.stop - stage.start) for stage in replica.stages]
    layers[-1] += loss
    return [work / (whole * len(stage.devices)) for work, stage in zip(layers, replica.stages, strict=True)]


class Simulation:
    """Runs all stages in virtual time. Backward goes before forward; tasks keep their global order in both."""

    def __init__(self, layout: Layout, tasks: Sequence[Task], loss: float, in_flight: int, drained: set[int]) -> None:
        self._tasks, self._drained = {task.index: task for task in tasks}, drained
        self._replicas = [self._states(r, replica, loss, in_flight) for r, replica in enumerate(layout.replicas)]
        for task in tasks:
            for replica in task.replicas:
                self._replicas[replica][0].queue.append(task.index)
        self._now, self._ends = 0.0, list[tuple[float, int, int]]()
        self._open = deque[StageState]()
        self._relaxed = False

    @staticmethod
    def _states(number: int, replica: Replica, loss: float, in_flight: int) -> list[StageState]:
        parts, count, queue = loads(replica, loss), len(replica.stages), list[int]()
        slowest = max(parts)
        return [
            StageState(number, s, s == count - 1, min(count - s, in_flight or count), parts[s] / slowest, queue)
            for s in range(count)
        ]

    def run(self) -> bool:
        """Returns whether every stage came to its end."""
        self._open.extend(chain.from_iterable(self._replicas))
        while True:
            while self._open:
                self._advance(self._open.popleft())
            if not self._ends and not self._relax():
                return not self.waiting()
            if not self._ends:
                continue
            self._now = self._ends[0][0]
            while self._ends and self._ends[0][0] == self._now:
                _, replica, stage = heappop(self._ends)
                self._finish(self._replicas[replica][stage])

    def waiting(self) -> set[int]:
        """The tasks that are next on stages that have not come to their end."""
        stages = [x for x in chain.from_iterable(self._replicas) if x.backward < len(x.queue)]
        return {k for x in stages for k in (x.task("F"), x.task("B")) if k >= 0}

    def lists(self) -> tuple[StageOperations, ...]:
        stages = chain.from_iterable(self._replicas)
        return tuple(StageOperations(x.replica, x.stage, tuple(x.done)) for x in stages)

    def _advance(self, state: StageState) -> None:
        if state.running:
            return
        if state.chosen is None:
            self._choose(state)
        if state.chosen and state.leaving is None:
            self._start(state, state.chosen)

    def _choose(self, state: StageState) -> None:
        if self._can_receive(state, "B") and (self._relaxed or not self._awaits_forward(state)):
            self._take(state, "B")
        elif self._can_receive(state, "F"):
            # A ring's forward is chosen by all members at once: until then each may go backward.
            members = self._members(state, "F")
            if all(self._can_receive(member, "F", state.task("F")) for member in members):
                for member in members:
                    self._take(member, "F")

    def _relax(self) -> bool:
        """Once nothing goes on, lets stages go backward before they have all the graphs that they may keep."""
        self._relaxed = True
        for state in chain.from_iterable(self._replicas):
            if not state.running and state.chosen is None and self._can_receive(state, "B"):
                self._take(state, "B")
                break
        self._relaxed = False
        return bool(self._open)

    def _awaits_forward(self, state: StageState) -> bool:
        """Whether a forward goes first: a stage that went backward as soon as it can would keep too few graphs for ever."""
        task, room = state.task("F"), state.forward - state.backward < state.most
        return room and task >= 0 and len(self._tasks[task].replicas) == 1

    def _can_receive(self, state: StageState, kind: Kind, task: int | None = None) -> bool:
        """Whether the stage may choose its next operation of a kind now: order, room and input.

        While its own result leaves, it may only take from the stage that it sends to: both are in one batch.
        """
        mine = state.task(kind)
        if state.running or state.chosen or mine < 0 or (task is not None and mine != task):
            return False
        if kind == "B":
            if state.backward == state.forward or state.leaving == "B":
                return False
            return state.leaving is None if state.last else self._beside(state, 1).sent("B") == mine
        flying = state.forward - state.backward
        if flying >= state.most or state.leaving == "F":
            return False
        if state.stage:
            return self._beside(state, -1).sent("F") == mine
        return state.leaving is None and not (flying and mine in self._drained)

    def _take(self, state: StageState, kind: Kind) -> None:
        state.chosen = kind
        if state.stage if kind == "F" else not state.last:
            sender = self._beside(state, -1 if kind == "F" else 1)
            sender.leaving = None
            self._open.append(sender)
        self._open.append(state)

    def _start(self, state: StageState, kind: Kind) -> None:
        members, task = self._members(state, kind), state.task(kind)
        if any(m.running or m.leaving or m.chosen != kind or m.task(kind) != task for m in members):
            return
        seconds = (self._tasks[task].seconds or 1.0) * (FORWARD if kind == "F" else 1 - FORWARD)
        for member in members:
            member.running = True
            heappush(self._ends, (self._now + seconds * member.load, member.replica, member.stage))

    def _finish(self, state: StageState) -> None:
        kind = state.chosen
        assert kind
        state.done.append(Operation(kind, state.task(kind)))
        if kind == "F":
            state.forward += 1
        else:
            state.backward += 1
        sends = not state.last if kind == "F" else state.stage > 0
        state.leaving, state.chosen, state.running = kind if sends else None, None, False
        self._open.append(state)
        if sends:
            self._open.append(self._beside(state, 1 if kind == "F" else -1))

    def _members(self, state: StageState, kind: Kind) -> list[StageState]:
        return [self._replicas[replica][state.stage] for replica in self._tasks[state.task(kind)].replicas]

    def _beside(self, state: StageState, step: int) -> StageState:
        return self._replicas[state.replica][state.stage + step]
