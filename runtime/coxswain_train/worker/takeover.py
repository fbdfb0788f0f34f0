"""How a worker goes on from state that ranks hold, and what it keeps where that fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from coxswain.errors import Retryable
from coxswain.live import LiveSource
from coxswain_train.engine.engine import Engine
from coxswain_train.live.claims import NotHeld
from coxswain_train.live.state import LiveState
from coxswain_train.worker.worlds import StateNotTaken, is_out_of_memory

log = logging.getLogger(__name__)


def take_over(engine: Engine, live: LiveState, source: LiveSource, nodes: Sequence[str], rank: int) -> None:
    """Takes the rank's state from the ranks of `source`. Raises StateNotTaken where they cannot give it.

    Forgets what the worker holds where the next world would meet the same fault: that world begins at a checkpoint.
    """
    try:
        engine.take_over(source, nodes)
    except Retryable as error:
        if not isinstance(error, NotHeld):
            live.forget()
        raise StateNotTaken(f"generation {source.generation}, step {source.step}: {error}") from error
    except Exception as error:
        if is_out_of_memory(error):
            live.forget()
        raise
    log.info("rank %d goes on at step %d from living state", rank, source.step)
