"""A queue of keys: rung as often as anybody likes, handled one at a time for each key, again after a while by themselves."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType

from coxswain_operator.cluster import Conflict
from coxswain_operator.controller import COALESCE_SECONDS, Rest

log = logging.getLogger(__name__)

Key = tuple[str, str]  # namespace, name
AT_ONCE = 16  # turns of different keys
LONGEST_PAUSE = 60.0  # after turns that failed


class KeyedQueue:
    """`turn(key)` answers how long to rest, or None: the key is gone.

    A turn that raises is repeated after a pause that doubles up to a minute; a Conflict only means that it was overtaken.
    Use as `async with`; leaving it ends all turns.
    """

    def __init__(self, turn: Callable[[Key], Awaitable[Rest | None]]) -> None:
        self._turn = turn
        self._bells: dict[Key, asyncio.Event] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._due: dict[Key, float] = {}  # rung and not begun: since when
        self._places = asyncio.Semaphore(AT_ONCE)

    async def __aenter__(self) -> KeyedQueue:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ring(self, key: Key) -> None:
        """Asks for a turn soon, also if one is under way."""
        self._due.setdefault(key, time.monotonic())
        if key not in self._tasks:
            self._bells[key] = asyncio.Event()
            self._tasks[key] = asyncio.create_task(self._serve(key), name=f"job {key[0]}/{key[1]}")
        self._bells[key].set()

    @property
    def keys(self) -> list[Key]:
        return list(self._tasks)

    def oldest(self, now: float) -> float:
        """Seconds that the most patient ring has waited for its turn."""
        return max((now - since for since in self._due.values()), default=0.0)

    async def _serve(self, key: Key) -> None:
        """Turns until the key is gone and nobody has rung since."""
        bell, failures, rest = self._bells[key], 0, Rest(0.0, 0.0)
        while bell.is_set() or rest is not GONE:
            await _rested(bell, rest)
            try:
                rest, failures = await self._one(key) or GONE, 0
            except Exception as error:
                failures += 1
                rest = _pause(key, error, failures)
        del self._tasks[key], self._bells[key]

    async def _one(self, key: Key) -> Rest | None:
        async with self._places:
            self._due.pop(key, None)
            return await self._turn(key)


GONE = Rest(0.0, 0.0)


async def _rested(bell: asyncio.Event, rest: Rest) -> None:
    """Until somebody rings, but no sooner than the rest allows; a moment more, so that rings that come together are one."""
    begun = time.monotonic()
    with suppress(TimeoutError):
        async with asyncio.timeout(rest.most):
            await bell.wait()
    await asyncio.sleep(max(COALESCE_SECONDS, begun + rest.least - time.monotonic()))
    bell.clear()


def _pause(key: Key, error: Exception, failures: int) -> Rest:
    """Rings do not shorten it, or a busy job would hammer an ailing server."""
    if isinstance(error, Conflict):
        log.info("%s/%s: overtaken: %s", *key, error)
        return Rest(COALESCE_SECONDS, COALESCE_SECONDS)
    log.warning("%s/%s: %s: %s", *key, type(error).__name__, error, exc_info=not str(error))
    seconds = random.uniform(0.5, 1.0) * min(LONGEST_PAUSE, 2.0 ** (failures - 1))
    return Rest(seconds, seconds)
