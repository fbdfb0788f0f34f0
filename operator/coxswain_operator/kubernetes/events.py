"""Writes Events in the background, few and in order; no pass waits for one."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from coxswain_operator.cluster import AlreadyExists
from coxswain_operator.kubernetes.connection import JSON, MERGE, Connection, NotFound
from coxswain_operator.kubernetes.event_aggregator import EventAggregator, EventSeries
from coxswain_operator.kubernetes.resources import EVENTS, FIELD_MANAGER
from coxswain_operator.reconcile.times import moment
from coxswain_operator.views import Event, Manifest

log = logging.getLogger(__name__)

ATTEMPT_SECONDS = 5.0  # for one Event; then it is lost
COUNT_SECONDS = 5.0  # between two looks for Events that were counted up
_NOTE_LENGTH = 1024  # bytes that the API takes


class Events:
    """Use as `async with`; leaving it writes what is left, for at most a few seconds."""

    def __init__(
        self,
        connection: Connection,
        aggregator: EventAggregator | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._connection, self._book = connection, aggregator or EventAggregator()
        self._clock, self._pause = clock, pause
        self._waiting: asyncio.Queue[tuple[str, EventSeries, Manifest]] = asyncio.Queue()  # method, Event, body

    async def __aenter__(self) -> Events:
        self._tasks = [asyncio.create_task(work(), name="events") for work in (self._write, self._count)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._count_up()
        with suppress(TimeoutError):
            async with asyncio.timeout(ATTEMPT_SECONDS):
                await self._waiting.join()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def put(self, involved: Manifest, event: Event) -> None:
        """At once an Event, or soon a count in one."""
        meta = involved["metadata"]
        subject, name = (str(meta["uid"]), event.reason), f"{meta['name']}.{secrets.token_hex(8)}"
        path = EVENTS.path(meta["namespace"], name)
        if (series := self._book.add(subject, event.message, path, self._clock())) is not None:
            self._waiting.put_nowait(("POST", series, _event(involved, event, name)))

    async def _write(self) -> None:
        while True:
            method, series, body = await self._waiting.get()
            try:
                await self._send(method, series.path, body)
            except Exception as error:  # also one that is not expected: the next Events need this task
                log.warning("an Event could not be published: %s: %s", type(error).__name__, error)
                if isinstance(error, NotFound) or (method == "POST" and not isinstance(error, AlreadyExists)):
                    self._book.drop(series)  # else its count would go up in an Event that is not there
            finally:
                self._waiting.task_done()

    async def _send(self, method: str, path: str, body: Manifest) -> None:
        if method == "POST":
            await self._connection.send(method, path.rpartition("/")[0], body, JSON, deadline=ATTEMPT_SECONDS)
        else:
            await self._connection.send(method, path, body, MERGE, deadline=ATTEMPT_SECONDS)

    async def _count(self) -> None:
        while True:
            await self._pause(COUNT_SECONDS)
            self._count_up()
            self._book.forget(self._clock())

    def _count_up(self) -> None:
        for series in self._book.unpublished():
            series.published = series.count
            self._waiting.put_nowait(("PATCH", series, _counted(series)))


def _counted(series: EventSeries) -> Manifest:
    return {"series": {"count": series.count, "lastObservedTime": _stamp(time.time())}}


def _event(involved: Manifest, event: Event, name: str) -> Manifest:
    meta = involved["metadata"]
    regarding: dict[str, Any] = {key: meta[key] for key in ("name", "namespace", "uid")}
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": name, "namespace": meta["namespace"]},
        "eventTime": _stamp(event.time or time.time()),
        "reportingController": FIELD_MANAGER,
        "reportingInstance": socket.gethostname(),
        "action": "Reconcile",
        "reason": event.reason,
        "note": event.message.encode()[:_NOTE_LENGTH].decode(errors="ignore"),
        "type": "Warning" if event.warning else "Normal",
        "regarding": {"apiVersion": involved["apiVersion"], "kind": involved["kind"], **regarding},
    }


def _stamp(seconds: float) -> str:
    return moment(seconds).isoformat(timespec="microseconds").replace("+00:00", "Z")
