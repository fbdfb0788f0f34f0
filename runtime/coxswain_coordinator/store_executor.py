"""Blocking work on the store from the event loop: in a thread, and again while the store is away."""

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
"""Seconds for one piece of work with its repetitions: beyond, a store or a planner hangs, and only a restart helps."""


class StoreExecutor:
    """Runs blocking work. `trouble` says what the store answers at the moment; empty: nothing is wrong.

    Its threads are its own: the event loop waits for those of its default executor before it closes.
    """

    def __init__(self, patience: float | None = None, deadline: float = DEADLINE) -> None:
        """After `patience` seconds (those of the store) the coordinator leaves with 1, to be started again."""
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
        """`trouble` says what the store itself repeats calls for at the moment."""
        self._store_error = last_error

    @property
    def last_error(self) -> str:
        return self._last_error or self._store_error()

    async def __call__(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises what `work` raises; Retryable only once the patience is over."""
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
        log.warning("trying again: %s", self._last_error)
