"""A queue of keys: coalesces additions, processes each key serially, and requeues it by itself."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from coxswain_operator.backoff import asked_by, doubled
from coxswain_operator.cluster import Conflict

log = logging.getLogger(__name__)

Key = tuple[str, str]  # namespace, name
COALESCE_SECONDS = 0.05  # keys that are added together are one pass
CROWD_SECONDS = 0.5  # that a key rests at most because others have been added
MAX_CONCURRENT = 16  # keys in process
MAX_BACKOFF_SECONDS = 60.0  # after failures
ERROR_SECONDS, CONFLICT_SECONDS = 1.0, 0.05  # after the first one


@dataclass(frozen=True, slots=True)
class RequeueDelay:
    """Seconds between two passes over a job: `least` even if something changes, `most` even if
    nothing does.
    """

    least: float
    most: float


class WorkQueue:
    """`process(key)` returns the delay until the next call, or None: the key is gone.

    After an error it is called again, with a delay that doubles up to a minute; after a Conflict nearly at once, and
    later only where one follows another. Use as `async with`; leaving it cancels all calls.
    """

    def __init__(self, process: Callable[[Key], Awaitable[RequeueDelay | None]]) -> None:
        self._process = process
        self._added: dict[Key, asyncio.Event] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._due: dict[Key, float] = {}  # when a key was added that is not in process yet
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._ended = 0.0  # when a call ended last, by the event loop's clock
        self._is_left = False

    async def __aenter__(self) -> WorkQueue:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_left, tasks = True, list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def add(self, key: Key) -> None:
        """Asks for a call soon, also during one. Nothing once the queue is left: another operator may lead by then."""
        if self._is_left:
            return
        self._due.setdefault(key, asyncio.get_running_loop().time())
        if key not in self._tasks:
            self._added[key] = asyncio.Event()
            self._tasks[key] = asyncio.create_task(self._process_until_gone(key), name=f"job {key[0]}/{key[1]}")
        self._added[key].set()

    @property
    def keys(self) -> list[Key]:
        return list(self._tasks)

    def oldest(self, now: float) -> float:
        """Seconds that the oldest waiting key has waited; `now` by the event loop's clock."""
        return max((now - since for since in self._due.values()), default=0.0)

    def stalled(self, now: float) -> float:
        """Seconds for which keys have waited and no call has ended: a server that is slow or fails ends them all, with errors."""
        return min(self.oldest(now), now - self._ended)

    async def _process_until_gone(self, key: Key) -> None:
        """Processes the key until it is gone and was not added since."""
        added, failures = self._added[key], 0
        rest: RequeueDelay | None = None
        while added.is_set() or rest:
            if rest:
                await self._wait_for_add(added, rest)
            await asyncio.sleep(COALESCE_SECONDS)
            added.clear()
            try:
                rest, failures = await self._process_once(key), 0
            except Exception as error:
                failures += 1
                rest = _backoff(key, error, failures)
        del self._tasks[key], self._added[key]

    async def _wait_for_add(self, added: asyncio.Event, rest: RequeueDelay) -> None:
        """Waits for an addition, for least to most seconds.

        `least` is what one key may cost. Where others have been added too, they share that: each rests so many times as long.
        """
        clock = asyncio.get_running_loop().time
        begun = clock()
        with suppress(TimeoutError):
            async with asyncio.timeout(rest.most):
                await added.wait()
        shared = min(rest.least * max(1, len(self._due)), max(rest.least, CROWD_SECONDS))
        await asyncio.sleep(begun + shared - clock())

    async def _process_once(self, key: Key) -> RequeueDelay | None:
        async with self._slots:
            self._due.pop(key, None)
            try:
                return await self._process(key)
            finally:
                self._ended = asyncio.get_running_loop().time()


def _backoff(key: Key, error: Exception, failures: int) -> RequeueDelay:
    """Additions do not shorten it: a busy job must not overload a failing server. What the server asks for comes on top."""
    if isinstance(error, Conflict):
        log.info("%s/%s: the object has changed: %s", *key, error)
    else:
        log.warning("%s/%s: %s: %s", *key, type(error).__name__, error, exc_info=not str(error))
    first = CONFLICT_SECONDS if isinstance(error, Conflict) else ERROR_SECONDS
    seconds = asked_by(error) + random.uniform(0.5, 1.0) * doubled(failures, first, MAX_BACKOFF_SECONDS)
    return RequeueDelay(seconds, seconds)
