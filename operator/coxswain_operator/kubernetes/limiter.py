"""Limits the requests under way: all that are allowed while the server keeps up, else fewer."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

SLOW_SECONDS = 1.0  # a longer answer has waited in a queue of the server
SLOW_PART = 4  # slow answers alone leave this part of the limit: a webhook may be the reason


class AdaptiveLimiter:
    """Halved when the server fails or is slow, one more for every round of good answers, as TCP shares a line.

    A server at its limit answers sixty requests no faster than ten, but then every client waits six
    times as long: kubelets, schedulers, and the renewal of the own Lease.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._limit, self._under_way, self._reduced = float(most), 0, float("-inf")
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        return int(self._limit)

    @asynccontextmanager
    async def slot(self, overload: type[BaseException], end: float | None = None) -> AsyncIterator[None]:
        """Waits for a place until `end`, by the event loop's clock (None: without limit); then raises TimeoutError.

        `overload`: what is raised inside when the server cannot cope.
        """
        async with asyncio.timeout_at(end):
            await self._acquire()
        began = self._clock()
        try:
            yield
            self._adjust(began, SLOW_PART if self._clock() - began > SLOW_SECONDS else 0)
        except overload:
            self._adjust(began, self._most)
            raise
        finally:
            self._release()

    def _adjust(self, began: float, part: int) -> None:
        """`part` 0: all is well. Else a reduction, down to that part; what was under way at the last one says nothing new."""
        if not part:
            self._limit = min(float(self._most), self._limit + 1.0 / self._limit)
        elif began >= self._reduced:
            self._limit = max(1.0, min(self._limit, max(self._limit / 2, self._most / part)))
            self._reduced = self._clock()

    async def _acquire(self) -> None:
        if self._under_way < self.limit:  # then none waits
            self._under_way += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it had been given to us
                self._release()
            raise

    def _release(self) -> None:
        """Hands places on, in the order in which they were asked for."""
        self._under_way -= 1
        while self._waiting and self._under_way < self.limit:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                self._under_way += 1
