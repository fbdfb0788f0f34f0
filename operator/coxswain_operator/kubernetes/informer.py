"""Keeps a cache as the API server has it: LIST in pages, then WATCH from there, for ever."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Any

from coxswain.errors import CoxswainError, Retryable
from coxswain_operator.cluster import Manifest
from coxswain_operator.kubernetes.cache import Cache
from coxswain_operator.kubernetes.connection import Connection, Expired
from coxswain_operator.kubernetes.resources import Resource

log = logging.getLogger(__name__)

PAGE = 500
WATCH_SECONDS = 300  # after which the server ends a watch, and we go on with the next
SILENCE_SECONDS = 70.0  # the server sends bookmarks every minute: longer silence is a dead stream


class Informer:
    """One kind, in one namespace or in all (""). `cache` is only complete once `ready` has returned."""

    def __init__(
        self, connection: Connection, resource: Resource, namespace: str = "", silence: float = SILENCE_SECONDS
    ) -> None:
        self._connection, self._resource, self._silence = connection, resource, silence
        self._path = resource.path(namespace)
        self._selector: dict[str, Any] = {"labelSelector": resource.selector} if resource.selector else {}
        self._synced = asyncio.Event()
        self._trouble = ""
        self.cache = Cache(resource.api_version, resource.kind)
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
            except (CoxswainError, OSError) as error:
                if not isinstance(error, Retryable):  # it answered: to start anew would not help
                    self.heard = time.monotonic()
                self._trouble, failures = str(error), failures + 1
                log.warning("%s: %s", self._path, error)
                await asyncio.sleep(random.uniform(0.1, min(30.0, 0.5 * 2.0**failures)))

    async def ready(self, deadline: float | None = 10.0) -> None:
        """Once the cache is complete; raises Retryable with what stands in the way if that takes longer (None: for ever)."""
        try:
            await asyncio.wait_for(self._synced.wait(), deadline)
        except TimeoutError as error:
            raise Retryable(f"{self._path} could not be listed within {deadline} s: {self._trouble}") from error

    async def _list(self) -> None:
        """A LIST without resourceVersion is as of now, also on a server that has only just caught up."""
        items: list[Manifest] = []
        page: Manifest = {"metadata": {"continue": ""}}
        while True:
            more: dict[str, Any] = (
                {"continue": page["metadata"]["continue"]} if page["metadata"].get("continue") else {}
            )
            page = await self._connection.call("GET", self._path, limit=str(PAGE), **self._selector, **more)
            items += page["items"]
            if not page["metadata"].get("continue"):
                break
        self.cache.replace(items, int(page["metadata"]["resourceVersion"]))
        self.heard = time.monotonic()
        self._synced.set()

    async def _follow(self) -> None:
        """Watches until something is wrong; a watch that the server ends in good order goes on where it was."""
        while True:
            messages = self._connection.lines(
                self._path, self._silence, watch="true", allowWatchBookmarks="true", timeoutSeconds=str(WATCH_SECONDS),
                resourceVersion=str(self.cache.version), **self._selector,
            )  # fmt: skip
            async for message in messages:
                self._take(message)

    def _take(self, message: Manifest) -> None:
        self.heard = time.monotonic()
        kind, item = message["type"], message["object"]
        if kind != "ERROR":
            self.cache.see(kind, item)
        elif item.get("code") == 410:
            raise Expired(str(item.get("message")))
        else:
            raise Retryable(f"watch {self._path}: {item.get('message')}")
