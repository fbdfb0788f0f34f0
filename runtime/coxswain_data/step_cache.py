"""The steps that a constructor has built: what to build next, and each rank's buffer."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from coxswain.errors import CoxswainError, Refused, Stale
from coxswain_link.step_buffer import Buffer

Part = Any
"""What a rank computes, hashable. Ranks with equal parts get the same buffer."""


class _Step(NamedTuple):
    """A built step."""

    buffers: Mapping[Part, Buffer]
    ranks: set[int]  # that have it


class StepCache:
    """Buffers of one generation by step and part, at most `ahead` beyond the last request.

    Steps that a worker waits for come first: so a restarted constructor finds the current step.
    Thread-safe.
    """

    def __init__(self, ahead: int, ready: Callable[[int], None] = lambda steps: None) -> None:
        self._ahead, self._ready = max(1, ahead), ready
        self._change = threading.Condition()
        self.asked = Counter[tuple[int, int]]()  # requests that wait, by (generation, step)
        self.close()

    def open(self, generation: int, first_step: int, parts: Mapping[int, Part]) -> None:
        """Begins a generation and drops the one before.

        `parts`: our ranks and the part of each.
        """
        with self._change:
            self._generation, self._parts = generation, dict(parts)
            self._first, self._front = first_step, first_step - 1  # `front`: the last step handed to a rank
            self._steps: dict[int, _Step] = {}
            self._fault: CoxswainError | None = None
            self._report()
            self._change.notify_all()

    def close(self) -> None:
        """Ends the current generation; its builder stops."""
        self.open(-1, 0, {})

    def next_step(self, generation: int) -> int | None:
        """Blocks until there is a step to build; None when the generation is over or has failed."""
        with self._change:
            while generation == self._generation and self._fault is None:
                wanted = self._missing()
                if wanted is not None:
                    return wanted
                self._change.wait()
            return None

    def skip_to(self, generation: int, step: int) -> None:
        """Skips the steps before this one: they are closed."""
        with self._change:
            if generation == self._generation:
                self._first, self._front = max(self._first, step), max(self._front, step - 1)

    @property
    def oldest(self) -> int:
        """The first step that a rank may still ask for."""
        with self._change:
            return min(self._steps, default=self._front + 1)

    def is_open(self, generation: int) -> bool:
        return generation == self._generation

    def put(self, generation: int, step: int, buffers: Mapping[Part, Buffer]) -> None:
        """Adds a built step: a buffer for each part."""
        with self._change:
            if generation == self._generation:
                self._steps[step] = _Step(buffers, set())
                self._report()
                self._change.notify_all()

    def fail(self, generation: int, error: CoxswainError) -> None:
        """Ends building in this generation: waiting ranks get the error."""
        with self._change:
            if generation == self._generation:
                self._fault = error
                self._change.notify_all()

    def provide(self, generation: int, step: int, rank: int, wait: float) -> Buffer | None:
        """A rank's buffer, or None when it is not built within `wait` seconds.

        See HandoverServer.
        """
        with self._change:
            self.asked[generation, step] += 1
            self._change.notify_all()
            try:
                built = self._change.wait_for(lambda: self._is_built(generation, step), wait)
                return self._hand_over(step, rank) if built else None
            finally:
                self.asked -= Counter({(generation, step): 1})

    def _is_built(self, generation: int, step: int) -> bool:
        """Newer generations wait: a worker may know of a world before its constructor does."""
        if generation < self._generation:
            raise Stale(f"generation {generation} is over; the current one is {self._generation}")
        if generation > self._generation:
            return False
        if step not in self._steps and self._fault is not None:
            raise self._fault
        return step in self._steps

    def _hand_over(self, step: int, rank: int) -> Buffer:
        if rank not in self._parts:
            raise Refused("WrongRank", f"rank {rank} does not sit in this pod; its ranks are {sorted(self._parts)}")
        built = self._steps[step]
        built.ranks.add(rank)
        self._front = max(self._front, step)
        self._drop()
        self._report()
        self._change.notify_all()
        return built.buffers[self._parts[rank]]

    def _drop(self) -> None:
        """Drops steps that all ranks have and one rank has passed, and all steps before those."""
        done = [s for s in self._steps if s < self._front - 1 or (s < self._front and self._all_ranks_have(s))]
        for step in done:
            if not self.asked[self._generation, step]:
                del self._steps[step]

    def _all_ranks_have(self, step: int) -> bool:
        return self._steps[step].ranks >= set(self._parts)

    def _missing(self) -> int | None:
        asked = sorted(s for g, s in self.asked if g == self._generation and s >= self._first)
        window = range(self._front + 1, self._front + 1 + self._ahead)
        return next((s for s in (*asked, *window) if s not in self._steps), None)

    def _report(self) -> None:
        """Says nothing before the first generation and after the last: nothing is awaited then."""
        if self._generation >= 0:
            self._ready(sum(s > self._front for s in self._steps))
