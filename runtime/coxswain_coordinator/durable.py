"""Blocking work on the store from the event loop: in a thread, and again while the store is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import tenacity

from coxswain.errors import Retryable

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 60.0
"""Seconds for which a store may be away; then the coordinator leaves with 1, to be started again."""


class Durable:
    """Runs blocking work. `trouble` says what the store answers at the moment; empty: nothing is wrong."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self.trouble = ""
        self._retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(Retryable),
            stop=tenacity.stop_after_delay(patience),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=5.0),
            before_sleep=self._tell,
            reraise=True,
        )

    async def __call__(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises what `work` raises; Retryable only once the patience is over."""
        result: T = await self._retrying(asyncio.to_thread, work, *args, **kwargs)
        self.trouble = ""
        return result

    def _tell(self, state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None
        self.trouble = str(state.outcome.exception())
        log.warning("trying again: %s", self.trouble)
