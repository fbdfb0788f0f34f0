"""What happens to the pods of a namespace, as one watch sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

import aiohttp
import msgspec


class _Meta(msgspec.Struct):
    name: str = ""
    uid: str = ""
    resourceVersion: str = ""
    deletionTimestamp: str = ""


class _Status(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta
    status: _Status = msgspec.field(default_factory=_Status)


class _Message(msgspec.Struct):
    type: str
    object: _Pod


class _List(msgspec.Struct):
    metadata: _Meta
    items: list[_Pod]


class Pods:
    """Use as `async with`. Times are time.monotonic()'s."""

    def __init__(self, http: aiohttp.ClientSession, namespace: str, check: Callable[[], None] = lambda: None) -> None:
        """`check` is called now and then while something is waited for: it raises what makes waiting pointless."""
        self._http, self._path, self._check = http, f"/api/v1/namespaces/{namespace}/pods", check
        self._changed = asyncio.Event()
        self.seen: dict[str, tuple[str, float]] = {}  # by uid: name, first seen
        self.running: dict[str, float] = {}  # by uid: since when Running and not leaving
        self.alive: dict[str, str] = {}  # by uid: name
        self.last_gone = 0.0
        self.events = 0

    async def __aenter__(self) -> Pods:
        async with self._http.get(self._path) as answer:
            self._version = msgspec.json.decode(await answer.read(), type=_List).metadata.resourceVersion
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, holds: Callable[[], bool], seconds: float) -> float:
        """The time when it held; raises TimeoutError, and what `check` raises."""
        end = time.monotonic() + seconds
        while not holds():
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 1.0)
            self._check()
            if self._task.done():
                self._task.result()
            if time.monotonic() > end:
                raise TimeoutError(f"after {seconds:g} s: {len(self.seen)} pods seen, {len(self.running)} Running")
        return time.monotonic()

    async def _follow(self) -> None:
        """A watch may fall silent: it is opened again every 30 s from where it was."""
        decoder, timeout = msgspec.json.Decoder(_Message), aiohttp.ClientTimeout(total=None)
        while True:
            params = {"watch": "true", "resourceVersion": self._version, "timeoutSeconds": "30"}
            async with self._http.get(self._path, params=params, timeout=timeout) as answer:
                rest = b""
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    now = time.monotonic()
                    for line in lines:
                        self._take(decoder.decode(line), now)
                    self._changed.set()

    def _take(self, message: _Message, now: float) -> None:
        meta = message.object.metadata
        self._version, self.events = meta.resourceVersion, self.events + 1
        if message.type == "DELETED":
            self.alive.pop(meta.uid, None)
            self.running.pop(meta.uid, None)
            self.last_gone = now
            return
        self.seen.setdefault(meta.uid, (meta.name, now))
        self.alive[meta.uid] = meta.name
        if message.object.status.phase == "Running" and not meta.deletionTimestamp:
            self.running.setdefault(meta.uid, now)
        else:
            self.running.pop(meta.uid, None)
