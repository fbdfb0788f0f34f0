"""Keeps a cache as the API server has it: LIST in pages, then WATCH from there, for ever."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Any

import msgspec

from coxswain.errors import CoxswainError, Refused, Retryable
from coxswain_operator.kubernetes.cache import Cache, Name
from coxswain_operator.kubernetes.connection import Connection, Expired
from coxswain_operator.kubernetes.decoding import reader_of
from coxswain_operator.kubernetes.resources import Resource

log = logging.getLogger(__name__)

PAGE = 500
WATCH_SECONDS = 300  # after which the server ends a watch, and we go on with the next
SILENCE_SECONDS = 70.0  # the server sends bookmarks every minute: longer silence is a dead stream


class _PageHead(msgspec.Struct, rename="camel"):
    resource_version: str
    next: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _PageHead
    items: list[msgspec.Raw] | None = None


class _Message(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _MarkHead(msgspec.Struct, rename="camel"):
    resource_version: str


class _Mark(msgspec.Struct):
    metadata: _MarkHead


class _Trouble(msgspec.Struct):
    code: int = 0
    message: str = ""


class Informer:
    """One kind, in one namespace or in all (""). `cache` is only complete once `ready` has returned."""

    def __init__(
        self, connection: Connection, resource: Resource, namespace: str = "", silence: float = SILENCE_SECONDS
    ) -> None:
        self._connection, self._resource, self._silence = connection, resource, silence
        self._path, self.read = resource.path(namespace), reader_of(resource)
        self._selector: dict[str, Any] = {"labelSelector": resource.selector} if resource.selector else {}
        self._synced, self._answered = asyncio.Event(), asyncio.Event()
        self._trouble, self._refused = "", False
        self.cache = Cache[Any]()
        self.heard = time.monotonic()  # when the server last answered or said something

    async def run(self) -> None:
        """For ever. Errors are logged, and followed by a new LIST after a pause that grows up to 30 s."""
        failures = 0
        while True:
            try:
                await self._list()
                failures = 0
                await self._follow()
            except Expired:
                log.info("%s: the watch is too far behind; listing again", self._path)
            except (CoxswainError, OSError, msgspec.DecodeError) as error:
                failures += 1
                self._fail(error)
                await asyncio.sleep(random.uniform(0.1, min(30.0, 0.5 * 2.0**failures)))

    async def ready(self, deadline: float | None = 10.0) -> None:
        """Once the cache is complete; raises Retryable with what stands in the way if that takes longer (None: for ever)."""
        if self._synced.is_set():  # without giving way: a turn's cost is its own then, not that of all others
            return
        try:
            async with asyncio.timeout(deadline):
                await self._synced.wait()
        except TimeoutError as error:
            raise Retryable(f"{self._path} could not be listed within {deadline} s: {self._trouble}") from error

    async def permitted(self, deadline: float = 10.0) -> bool:
        """Once the server has answered; False if it says that this is none of our business. Raises Retryable."""
        try:
            async with asyncio.timeout(deadline):
                await self._answered.wait()
        except TimeoutError as error:
            raise Retryable(f"{self._path} could not be listed within {deadline} s: {self._trouble}") from error
        return not self._refused

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, Retryable):  # it answered: to start anew would not help
            self.heard = time.monotonic()
        if isinstance(error, Refused):
            self._refused = True
            self._answered.set()
        if str(error) != self._trouble:
            log.warning("%s: %s", self._path, error)
        self._trouble = str(error)

    async def _list(self) -> None:
        """A LIST without resourceVersion is as of now, also on a server that has only just caught up."""
        listed: set[Name] = set()
        page = await self._page("")
        while True:
            for item in page.items or ():
                entry = self.read(item)
                listed.add(entry.name)
                self.cache.put(entry)
            if not page.metadata.next:
                break
            page = await self._page(page.metadata.next)
        self.cache.replace(listed, int(page.metadata.resource_version))
        self.heard = time.monotonic()
        self._trouble, self._refused = "", False
        self._synced.set()
        self._answered.set()

    async def _page(self, after: str) -> _Page:
        more: dict[str, Any] = {"continue": after} if after else {}
        content = await self._connection.send("GET", self._path, limit=str(PAGE), **self._selector, **more)
        return msgspec.json.decode(content, type=_Page)

    async def _follow(self) -> None:
        """Watches until something is wrong; a watch that the server ends in good order goes on where it was."""
        while True:
            lines = self._connection.lines(
                self._path, self._silence, watch="true", allowWatchBookmarks="true", timeoutSeconds=str(WATCH_SECONDS),
                resourceVersion=str(self.cache.version), **self._selector,
            )  # fmt: skip
            async for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        self.heard = time.monotonic()
        message = msgspec.json.decode(line, type=_Message)
        match message.type:
            case "ERROR":
                self._complain(msgspec.json.decode(message.object, type=_Trouble))
            case "BOOKMARK":
                self.cache.reach(int(msgspec.json.decode(message.object, type=_Mark).metadata.resource_version))
            case kind:
                entry = self.read(message.object)
                if kind == "DELETED":
                    self.cache.forget(entry.name, entry.version)
                else:
                    self.cache.put(entry)
                self.cache.reach(entry.version)

    def _complain(self, trouble: _Trouble) -> None:
        if trouble.code == 410:
            raise Expired(trouble.message)
        raise Retryable(f"watch {self._path}: {trouble.message}")
