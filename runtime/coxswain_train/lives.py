"""A worker's way from world to world."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable

from coxswain.errors import CoxswainError, Retryable, Stale
from coxswain_train.orders import Orders, Place
from coxswain_train.world import Escape, leave_world

log = logging.getLogger(__name__)

_MOMENT = 3.0  # seconds for the next world to be ordered after this one broke; an agent tells of a dead peer at once


def live(orders: Orders, escape: Escape, work: Callable[[Place], int]) -> int:
    """From world to world until one ends the work. What breaks a world that nobody replaces is this worker's own fault."""
    place = orders.follow(None)
    while True:
        assert place is not None
        escape.begin()
        try:
            return work(place)
        except (
            RuntimeError,
            Retryable,
            Stale,
        ) as error:  # RuntimeError: torch's word for a peer that is gone, among others
            log.warning("rank %d of world %d: %s", place.rank, place.generation, _first_line(error))
            after = orders.follow(_MOMENT)
            if after is None:
                raise error if isinstance(error, CoxswainError) else _lost(place, error) from error
            place = after
        leave_world()
        gc.collect()  # the model of the world before, before the next one's


def _lost(place: Place, error: Exception) -> Retryable:
    log.error("rank %d", place.rank, exc_info=error)
    return Retryable(f"rank {place.rank}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return str(error)[:500].partition("\n")[0]
