"""What becomes of calls on their way: late, lost, refused, held until another one has arrived, or arrived twice."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from coxswain.errors import Retryable, Stale
from coxswain_link.http_client import JobEnded

T = TypeVar("T")


@dataclass(frozen=True)
class Trouble:
    """Of one call. `request`, `answer`: seconds on the way. `until`: the request is on its way at most until a call of this path
    has been answered. `lost`: the answer of a message, or of any call. `refused`: nothing arrives. `again`: seconds until the
    request arrives a second time."""

    request: float = 0.0
    answer: float = 0.0
    until: str = ""
    lost: Literal["", "message", "any"] = ""
    refused: bool = False
    again: float | None = None


@dataclass(frozen=True)
class Rule:
    """Which calls have a trouble: from `first` on (0: the first one) so many of a caller's calls of a path."""

    path: str
    caller: str
    first: int
    trouble: Trouble
    times: int = 1

    def holds(self, path: str, caller: str, number: int) -> bool:
        return (path, caller) == (self.path, self.caller) and 0 <= number - self.first < self.times


class Troubles:
    """Of a run. The first rule that holds for a call counts."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules, self._calls = rules, Counter[tuple[str, str]]()
        self._answered: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._later: list[asyncio.Task[None]] = []

    def answered(self, path: str) -> None:
        """Lets go of what is held until this."""
        self._answered[path].set()

    async def send(self, method: str, path: str, caller: str, call: Callable[[], Awaitable[T]]) -> T:
        number = self._calls[path, caller]
        self._calls[path, caller] += 1
        trouble = next((rule.trouble for rule in self._rules if rule.holds(path, caller, number)), None)
        return await (call() if trouble is None else self._send(trouble, method, call))

    async def _send(self, trouble: Trouble, method: str, call: Callable[[], Awaitable[T]]) -> T:
        await self._travel(trouble)
        if trouble.refused:
            raise Retryable("connection refused")
        if trouble.again is not None:
            self._later.append(asyncio.create_task(_again(trouble.again, call)))
        found = await call()
        await asyncio.sleep(trouble.answer)
        if trouble.lost == "any" or (trouble.lost and method == "POST"):
            raise Retryable("the connection broke")
        return found

    async def _travel(self, trouble: Trouble) -> None:
        if not trouble.until:
            await asyncio.sleep(trouble.request)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._answered[trouble.until].wait(), trouble.request)

    def close(self) -> None:
        for task in self._later:
            task.cancel()


async def _again(seconds: float, call: Callable[[], Awaitable[Any]]) -> None:
    await asyncio.sleep(seconds)
    with suppress(Retryable, Stale, JobEnded):
        await call()
