"""Waits for changes of state: the one synchronisation between handlers and what waits for facts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Notifier:
    """Wakes all waiters after a change of state. Each evaluates its condition again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.count = 0

    def notify(self) -> None:
        self.count += 1
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait_after(self, count: int) -> None:
        """Returns once `notify` has been called more than `count` times."""
        while self.count <= count:
            await self._event.wait()

    async def wait_until(self, look: Callable[[], T | None], seconds: float) -> T | None:
        """The first value of `look` that is not None (nor False), or None when the time is up."""
        try:
            async with asyncio.timeout(seconds):
                while not (found := look()):
                    await self._event.wait()
                return found
        except TimeoutError:
            return look()
