"""Waits for changes of state: the one synchronisation between handlers and what waits for facts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import TypeVar

T = TypeVar("T")


class Topic(Enum):
    """What a waiter waits for. A change wakes the waiters of its topics and no others."""

    ANY = auto()  # woken by every change: the driver
    WORLD = auto()  # a world begins or is lost, or a member must register again
    PLANS = auto()  # plans are committed, or an end is decided: directives
    RENDEZVOUS = auto()
    INDEX = auto()  # shares are assigned, or the index is merged


class Notifier:
    """Wakes waiters by topic after a change of state. Each evaluates its condition again."""

    def __init__(self) -> None:
        self._events = {topic: asyncio.Event() for topic in Topic}
        self.count = 0

    def notify(self, *topics: Topic) -> None:
        """Wakes the waiters of these topics, and those of `ANY`; of every topic when none is given."""
        self.count += 1
        for topic in {*topics, Topic.ANY} if topics else Topic:
            event, self._events[topic] = self._events[topic], asyncio.Event()
            event.set()

    async def wait_until(self, look: Callable[[], T | None], seconds: float, topic: Topic = Topic.ANY) -> T | None:
        """The first value of `look` that is not None (nor False), or None when the time is up.

        `topic`: what changes the value of `look`.
        """
        try:
            async with asyncio.timeout(seconds):
                while not (found := look()):
                    await self._events[topic].wait()
                return found
        except TimeoutError:
            return look()
