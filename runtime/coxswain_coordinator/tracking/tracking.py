"""Hands closed steps to the job's trackers, each on a thread of its own: none can delay or end the training."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping

from coxswain.wire import StepLine
from coxswain_coordinator.tracking.sinks import Sink, scalars

log = logging.getLogger(__name__)

_WAITING = 100_000  # steps that wait for a slow tracker, some 50 MB; later ones are dropped until there is room
CLOSE_SECONDS = 15.0  # for a tracker to write what waits at the end of a job

Scalars = tuple[int, dict[str, float]]
"""A step's number, and what trackers show of it."""

OnFailure = Callable[[str, str], None]
"""(field of the tracker, error)."""


class Tracking:
    """The trackers of one job. Threads begin with the first line."""

    def __init__(self, sinks: Mapping[str, Callable[[], Sink]], on_failure: OnFailure) -> None:
        self._outlets = [_Outlet(field, make, on_failure) for field, make in sinks.items()]

    def add(self, line: StepLine) -> None:
        for outlet in self._outlets:
            outlet.add(line)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Waits until all is written, at most so long for each tracker."""
        for outlet in self._outlets:
            outlet.close(seconds)


class _Outlet:
    """One tracker with its queue. After its first error it is left alone."""

    def __init__(self, field: str, make: Callable[[], Sink], on_failure: OnFailure) -> None:
        self._field, self._make, self._on_failure = field, make, on_failure
        self._steps: queue.Queue[Scalars | None] = queue.Queue(_WAITING)  # a line of 300 sources is 50 times as large
        self._thread: threading.Thread | None = None

    def add(self, line: StepLine) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"tracking-{self._field}", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:  # the process may have no more threads
                self._give_up(error)
        self._put((line.step, scalars(line)))

    def close(self, seconds: float) -> None:
        if self._thread is not None and self._thread.ident is not None:
            self._put(None)
            self._thread.join(seconds)

    def _put(self, step: Scalars | None) -> None:
        try:
            self._steps.put_nowait(step)
        except queue.Full:
            log.debug("tracking.%s is behind; a step is dropped", self._field)

    def _run(self) -> None:
        try:
            sink = self._make()
            while (step := self._steps.get()) is not None:
                sink.write(*step)
            sink.close()
        except Exception as error:  # of a package that is not ours
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._steps = queue.Queue(1)  # later steps find it full, those that wait are dropped
        self._on_failure(self._field, f"{type(error).__name__}: {error}"[:500])
