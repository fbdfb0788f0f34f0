"""A worker's way from world to world."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable

from coxswain.errors import CoxswainError, Retryable, Stale
from coxswain_train.parallel.process_groups import WorldAborter, leave_world
from coxswain_train.worker.assignments import Assignment, AssignmentChannel

log = logging.getLogger(__name__)

_NEXT_WORLD_SECONDS = (
    3.0  # seconds for the next world to be ordered after this one broke; an agent tells of a dead peer at once
)


def run_worlds(assignments: AssignmentChannel, aborter: WorldAborter, work: Callable[[Assignment], int]) -> int:
    """From world to world until one ends the work. What breaks a world that nobody replaces is this worker's own fault."""
    place = assignments.next(None)
    while True:
        assert place is not None
        aborter.begin()
        try:
            return work(place)
        except (
            RuntimeError,
            Retryable,
            Stale,
        ) as error:  # RuntimeError: torch's word for a peer that is gone, among others
            log.warning("rank %d of world %d: %s", place.rank, place.generation, _first_line(error))
            after = assignments.next(_NEXT_WORLD_SECONDS)
            if after is None:
                raise error if isinstance(error, CoxswainError) else _lost(place, error) from error
            place = after
        leave_world()
        gc.collect()  # the model of the world before, before the next one's


def _lost(place: Assignment, error: Exception) -> Retryable:
    log.error("rank %d", place.rank, exc_info=error)
    return Retryable(f"rank {place.rank}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return str(error)[:500].partition("\n")[0]
