"""Processes that place steps beside the coordinator: for balances that solve an integer program.

They start at the first use, and end with this process, also when it is killed. Each has a pipe of its own, so one that is
killed holds nothing that another one needs.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from coxswain.config import JobConfig
from coxswain.errors import Refused, Retryable
from coxswain.layout import Layout
from coxswain.plan.values import Placement

_MOST = 8
"""Processes: a segment has so many steps."""

_LOOK_SECONDS = 0.2  # between two looks at whether plans are late
_NICENESS = 10  # beside the coordinator's loop, and trainers on the same machine


@dataclass(frozen=True, slots=True)
class Solved:
    placement: Placement
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """`why` is empty where the plan is only late."""

    why: str


Answer = Solved | Failed
Planner = Callable[[list[int], Layout, JobConfig, tuple[float, ...]], Placement]


@dataclass(eq=False, slots=True)
class _Solver:
    process: BaseProcess
    pipe: Connection
    step: int | None = None  # that it places now


class Solvers:
    """`planner` is a function of a module, which the processes import. One call of `place` at a time."""

    def __init__(self, planner: Planner, processes: int = 0) -> None:
        """`processes`: at most so many; 0: as there are cores."""
        self._planner = planner
        self.most = processes or min(_MOST, len(os.sched_getaffinity(0)))
        self._solvers: list[_Solver] = []
        self._closed, self._lock = False, threading.Lock()

    def place(
        self, steps: Mapping[int, list[int]], layout: Layout, job: JobConfig, is_late: Callable[[], bool],
        speeds: tuple[float, ...] = (),
    ) -> dict[int, Solved | Failed]:  # fmt: skip
        """Answers by step. Those that are late are left out, and what still computes them is killed.

        Raises Retryable once this is closed.
        """
        left, found = deque(steps), dict[int, Solved | Failed]()
        try:
            while len(found) < len(steps) and not is_late():
                self._check()
                while left and (idle := self._idle()) is not None:
                    step = left.popleft()
                    self._ask(idle, step, steps[step], layout, job, speeds)
                for solver in self._ready():
                    found |= self._take(solver)
        finally:
            self._end(lambda solver: solver.step is not None)
        self._check()  # what `close` has killed has not failed
        return found

    def close(self) -> None:
        """Kills all processes, also while another thread waits for them."""
        with self._lock:
            self._closed = True
        self._end(lambda _: True)

    def _check(self) -> None:
        if self._closed:
            raise Retryable("the coordinator stops: its planners have ended")

    def _idle(self) -> _Solver | None:
        """One that computes nothing, perhaps a new one; None where all that may be are busy."""
        with self._lock:
            self._check()
            idle = next((solver for solver in self._solvers if solver.step is None), None)
            if idle is None and len(self._solvers) < self.most:
                idle = _start(self._planner)
                self._solvers.append(idle)
            return idle

    def _ask(self, solver: _Solver, step: int, *question: object) -> None:
        solver.step = step
        with suppress(OSError):  # it has ended: so does its pipe, which is read next
            solver.pipe.send(question)

    def _ready(self) -> list[_Solver]:
        with self._lock:
            busy = [solver for solver in self._solvers if solver.step is not None]
        ready = wait([solver.pipe for solver in busy], _LOOK_SECONDS)
        return [solver for solver in busy if solver.pipe in ready]

    def _take(self, solver: _Solver) -> dict[int, Solved | Failed]:
        """The answer of one that has answered, or ended."""
        step = solver.step
        assert step is not None
        try:
            answer: Answer = solver.pipe.recv()
        except (EOFError, OSError):
            self._end(lambda each: each is solver)
            return {step: Failed(f"its process ended with {solver.process.exitcode}")}
        solver.step = None
        return {step: answer}

    def _end(self, ends: Callable[[_Solver], bool]) -> None:
        with self._lock:
            gone = [solver for solver in self._solvers if ends(solver)]
            self._solvers = [solver for solver in self._solvers if solver not in gone]
        for solver in gone:
            solver.process.kill()
            solver.process.join()


def _start(planner: Planner) -> _Solver:
    """A fork would copy threads that hold locks."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, planner), daemon=True)
    process.start()
    theirs.close()
    return _Solver(process, ours)


def _serve(pipe: Connection, planner: Planner) -> None:
    """In the process: places what it is asked for, until the other end is closed."""
    threading.Thread(target=_end_with_coordinator, daemon=True).start()
    os.nice(_NICENESS)
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(planner, *question))


def _end_with_coordinator() -> None:
    """Not by PR_SET_PDEATHSIG, which follows the thread that started this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _answer(planner: Planner, lengths: list[int], layout: Layout, job: JobConfig, speeds: tuple[float, ...]) -> Answer:
    began = time.monotonic()
    try:
        return Solved(planner(lengths, layout, job, speeds), time.monotonic() - began)
    except Refused as refused:  # the fall-back refuses too what is the user's fault
        return Failed(refused.message)
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}")
