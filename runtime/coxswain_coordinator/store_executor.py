"""Runs blocking store work from the event loop: in a thread, repeated while the store is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import tenacity

from coxswain.errors import Retryable
from coxswain_link.store import store_patience

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

DEADLINE = 600.0
"""Seconds for one call with its retries.

Beyond it the store or planner hangs: only a restart helps.
"""


class StoreExecutor:
    """Runs blocking work. `last_error`: what the store answers at present; empty: nothing is wrong.

    Uses its own threads: an event loop waits for its default executor's before it closes.
    """

    def __init__(self, patience: float | None = None, deadline: float = DEADLINE) -> None:
        """Retries for `patience` seconds (default: the store's), then the coordinator restarts."""
        self._last_error, self._deadline = "", deadline
        self._store_error: Callable[[], str] = lambda: ""
        self._threads = ThreadPoolExecutor(thread_name_prefix="durable")
        self._retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(Retryable),
            stop=tenacity.stop_after_delay(store_patience() if patience is None else patience),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=5.0),
            before_sleep=self._before_retry,
            reraise=True,
        )

    def watch(self, last_error: Callable[[], str]) -> None:
        """Adds the error for which the store itself retries a call at present."""
        self._store_error = last_error

    @property
    def last_error(self) -> str:
        return self._last_error or self._store_error()

    async def __call__(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises what `work` raises; Retryable only after the last retry."""
        try:
            async with asyncio.timeout(self._deadline):
                result: T = await self._retrying(self._run, partial(work, *args, **kwargs))
        except TimeoutError as error:
            raise Retryable(f"{work.__qualname__} did not end within {self._deadline:g} s") from error
        self._last_error = ""
        return result

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _before_retry(self, state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None
        self._last_error = str(state.outcome.exception())
        log.warning("retrying: %s", self._last_error)
