"""Runs many calls in parallel: one at first, then more and more, none after a failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import chain, zip_longest
from typing import TypeVar

T = TypeVar("T")
Call = Callable[[], Awaitable[bool]]

AT_ONCE = 64


class SlowStartBatch:
    """Workers over one list of calls. Each success adds a worker, so their number doubles.

    Kubernetes' Job controller starts pods so: a quota or a broken admission costs one request
    instead of a thousand.
    """

    def __init__(
        self, calls: Iterable[Call], at_once: int = AT_ONCE, seconds: float = float("inf"), at_first: int = 1
    ) -> None:
        """After `seconds` no call begins. `at_first`: workers at the start, as of an earlier batch."""
        self._calls, self._at_once, self._end = iter(calls), at_once, time.monotonic() + seconds
        self._at_first, self.workers = at_first, 0
        self._errors, self._as_expected = list[BaseException](), True
        self.is_done = False  # no call is left; the time was not up before

    async def run(self) -> bool:
        """Returns once all begun calls have ended; False: one returned False. Raises the first error."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._at_first):
                self._start_worker(group)
        if self._errors:
            raise self._errors[0]
        return self._as_expected

    def _start_worker(self, group: asyncio.TaskGroup) -> None:
        self.workers += 1
        group.create_task(self._worker(group))

    async def _worker(self, group: asyncio.TaskGroup) -> None:
        while (call := self._next_call()) is not None:
            try:
                expected = await call()
                self._as_expected &= expected  # read after the call: another worker may have changed it meanwhile
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # raised once the other calls have ended
                self._errors.append(error)
                return
            if self.workers < self._at_once:
                self._start_worker(group)

    def _next_call(self) -> Call | None:
        if self._errors or time.monotonic() >= self._end:
            return None
        call = next(self._calls, None)
        self.is_done = call is None
        return call


def interleave(first: Iterable[T], second: Iterable[T]) -> Iterator[T]:
    """One item of each in turn, then the rest of the longer one."""
    absent = object()
    pairs = zip_longest(first, second, fillvalue=absent)
    return (item for item in chain.from_iterable(pairs) if item is not absent)  # type: ignore[misc]
