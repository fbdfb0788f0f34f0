"""Keeps a cache equal to the API server: LIST in pages, then WATCH from that version, without end."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import msgspec

from coxswain.errors import CoxswainError, Refused, Retryable
from coxswain_operator.backoff import asked_by, doubled
from coxswain_operator.cluster import Denied
from coxswain_operator.kubernetes.cache import Cache, Entry, Name
from coxswain_operator.kubernetes.connection import BrokenOff, Busy, Connection, Expired, NotFound
from coxswain_operator.kubernetes.decoding import reader_of
from coxswain_operator.kubernetes.resources import Resource

log = logging.getLogger(__name__)

PAGE = 500
_PAGES: dict[str, Any] = {"limit": str(PAGE)}
_WHOLE: dict[str, Any] = {"deadline": 60.0}  # seconds
WATCH_SECONDS = 300  # the server then ends a watch; the next one continues it
SILENCE_SECONDS = 70.0  # the server sends a bookmark every minute: a longer silence is a dead stream
BETWEEN_WATCHES = 1.0  # seconds at least, should the server end each at once
LONGEST_PAUSE = 30.0  # seconds, after failures
FORBIDDEN_SECONDS = 60.0  # until a right counts as taken away: a server that has just started has not read the roles


class _PageHead(msgspec.Struct, rename="camel"):
    resource_version: str
    next: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _PageHead
    items: list[msgspec.Raw] | None = None


class _Message(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _BookmarkHead(msgspec.Struct, rename="camel"):
    resource_version: str


class _Bookmark(msgspec.Struct):
    metadata: _BookmarkHead


class _WatchError(msgspec.Struct):
    code: int = 0
    message: str = ""


class Informer:
    """One kind, in one namespace or in all (""). `cache` is complete once `ready` has returned."""

    def __init__(
        self, connection: Connection, resource: Resource, namespace: str = "", silence: float = SILENCE_SECONDS
    ) -> None:
        self._connection, self._resource, self._silence = connection, resource, silence
        self._path, self.read = resource.path(namespace), reader_of(resource)
        self._selector: dict[str, Any] = {"labelSelector": resource.selector} if resource.selector else {}
        self._synced, self._answered = asyncio.Event(), asyncio.Event()
        self._last_error, self._refused, self._absent = "", False, False
        self._forbidden = 0.0  # since when, while it is refused
        self._failures = 0  # in a row
        self.cache = Cache[Any]()
        self.heard = asyncio.get_running_loop().time()  # of the last answer or message of the server

    async def run(self) -> None:
        """Never returns. After an error it logs, pauses up to LONGEST_PAUSE, and lists again; a connection that broke goes on at
        its version first, once and within a second: too soon for a backup of the server to have been restored.

        A message of the watch ends a row of failures, a LIST alone does not: a server that refuses the watch would be asked for
        everything each second.
        """
        goes_on = False
        while True:
            try:
                if not goes_on:
                    await self._list()
                await self._follow()
            except Exception as error:  # also one that is not expected: a task that ended would leave a stale cache
                self._failures += 1
                self._fail(error)
                goes_on = isinstance(error, BrokenOff) and self._failures == 1
                pause = random.uniform(0.1, doubled(self._failures, 1.0, LONGEST_PAUSE))
                await asyncio.sleep(asked_by(error) + pause)

    async def ready(self, deadline: float | None = 10.0) -> None:
        """Waits until the cache is complete (`deadline` None: without limit); raises Retryable with the reason."""
        if not self._synced.is_set():  # without a task switch: the caller measures its own cost
            await self._wait(self._synced, deadline)

    async def _wait(self, event: asyncio.Event, deadline: float | None) -> None:
        try:
            async with asyncio.timeout(deadline):
                await event.wait()
        except TimeoutError as error:
            raise Retryable(f"{self._path} could not be listed within {deadline} s: {self._last_error}") from error

    async def permitted(self, deadline: float = 10.0) -> bool:
        """Waits for the server's answer; False if it has never allowed the LIST, or forbids it for long. Raises Retryable."""
        await self._wait(self._answered, deadline)
        lately = asyncio.get_running_loop().time() - self._forbidden < FORBIDDEN_SECONDS
        return not self._refused or (self._synced.is_set() and lately)

    async def readable(self, deadline: float = 10.0) -> bool:
        """Waits for the server's answer; False while the server has never known the kind. Raises Denied while it has never
        allowed the LIST, Retryable."""
        await self._wait(self._answered, deadline)
        if self._refused and not self._synced.is_set():
            raise Denied("Forbidden", self._last_error)
        return self._synced.is_set() or not self._absent

    def _fail(self, error: Exception) -> None:
        answered = isinstance(error, Busy) or not isinstance(error, Retryable)
        if answered:  # a restart of the operator is no help
            self.heard = asyncio.get_running_loop().time()
        if isinstance(error, Refused | NotFound):
            if not self._refused:
                self._forbidden = asyncio.get_running_loop().time()
            self._refused, self._absent = isinstance(error, Refused), isinstance(error, NotFound)
            self._answered.set()
        text = str(error) if isinstance(error, CoxswainError) else f"{type(error).__name__}: {error}"
        if text != self._last_error:
            log.warning("%s: %s", self._path, text)
        self._last_error = text

    async def _list(self) -> None:
        """A LIST without resourceVersion is current, also on a server that has just caught up.

        A server that is slow may have forgotten the first page's version before the last page: then all is one page.
        """
        try:
            await self._list_in(_PAGES)
        except Expired:
            await self._list_in(_WHOLE)

    async def _list_in(self, how: dict[str, Any]) -> None:
        listed, gone = set[Name](), self.cache.gone()
        page = await self._page("", how)
        version = int(page.metadata.resource_version)
        self._compare(version)
        while True:
            for item in page.items or ():
                entry = self.read(item)
                if entry.uid in gone or self.cache.is_ahead(entry, version):
                    self._restart(entry)
                listed.add(entry.name)
                self.cache.put(entry)
            if not page.metadata.next:
                break
            page = await self._page(page.metadata.next, how)
        self.cache.replace(listed, int(page.metadata.resource_version))
        self._last_error, self._refused, self._absent = "", False, False
        self._synced.set()
        self._answered.set()

    def _compare(self, version: int) -> None:
        """A current LIST is never older than the watch before it, unless a backup of the server was restored."""
        if version < self.cache.version:
            log.warning("%s: the server went back from version %d to %d", self._path, self.cache.version, version)
            self.cache.restart()

    def _restart(self, entry: Entry[Any]) -> None:
        """A restored server may also count on from beyond the watch before it: then single objects show that it went back."""
        self.cache.restart()
        raise Retryable(f"the server went back: it lists an earlier {'/'.join(entry.name)} than before; listing again")

    async def _page(self, after: str, how: dict[str, Any]) -> _Page:
        more: dict[str, Any] = {"continue": after} if after else {}
        content = await self._connection.send("GET", self._path, **how, **self._selector, **more)
        self.heard = asyncio.get_running_loop().time()  # of each page: a long list is not silent
        return msgspec.json.decode(content, type=_Page)

    async def _follow(self) -> None:
        """Watches until an error; after an orderly end the next watch continues at the same version."""
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            lines = self._connection.lines(
                self._path, self._silence, watch="true", allowWatchBookmarks="true", timeoutSeconds=str(WATCH_SECONDS),
                resourceVersion=str(self.cache.version), **self._selector,
            )  # fmt: skip
            async for line in lines:
                self._handle(line)
            await asyncio.sleep(began + BETWEEN_WATCHES - clock())

    def _handle(self, line: bytes) -> None:
        self.heard = asyncio.get_running_loop().time()
        message = msgspec.json.decode(line, type=_Message)
        match message.type:
            case "ERROR":
                self._raise(msgspec.json.decode(message.object, type=_WatchError))
            case "BOOKMARK":
                self.cache.reach(int(msgspec.json.decode(message.object, type=_Bookmark).metadata.resource_version))
            case kind:
                entry = self.read(message.object)
                if kind == "DELETED":
                    self.cache.forget(entry.name, entry.version)
                else:
                    self.cache.put(entry)
                self.cache.reach(entry.version)
        self._failures = 0

    def _raise(self, error: _WatchError) -> None:
        if error.code == 410:
            raise Expired(error.message)
        raise Retryable(f"watch {self._path}: {error.message}")
