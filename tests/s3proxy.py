"""A proxy between a client and a real S3 server that adds the faults of a plan.

with S3Server() as s3, S3Proxy(s3) as proxy:
    proxy.plan = every(3, reads, Cut())
    open_store("s3://bucket", EndpointConfig(url=proxy.endpoint_url, ...))

A request's signature covers the Host header, and the server checks it against the one that it gets:
so the client's is kept.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias

import aiohttp
from aiohttp import web
from yarl import URL

from coxswain_link.listening import close, listen
from tests import faults
from tests.faults import Corrupt, Cut, Delay, Lose, Refuse, Shorten, cut_off, drawn_from, dropped, flipped, passed_on
from tests.s3server import S3Server

Fault: TypeAlias = Refuse | Lose | Cut | Delay | Corrupt | Shorten

_CODES = {403: "AccessDenied", 404: "NoSuchBucket", 429: "TooManyRequests", 500: "InternalError", 503: "SlowDown"}


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as far as plans look at it."""

    method: str
    bucket: str
    key: str
    listing: bool

    @property
    def reading(self) -> bool:
        """Whether the answer has a body that matters."""
        return self.method == "GET"


Plan: TypeAlias = faults.Plan[Call, Fault]


def any_call(call: Call) -> bool:
    return True


def reads(call: Call) -> bool:
    return call.reading


def writes(call: Call) -> bool:
    return call.method in ("PUT", "DELETE")


def drawn(seed: int, share: float) -> Plan:
    """A passing fault for this share of all calls, chosen from those that fit the call."""
    where = random.Random(seed)
    anything: tuple[Fault, ...] = (*(Refuse(status) for status in (429, 500, 503)), Lose(), Delay(0.3))

    def choices(call: Call) -> tuple[Fault, ...]:
        corrupt = Corrupt(where.random())  # the same bit twice would pass for what was sent
        return (*anything, Cut(), corrupt, corrupt, corrupt) if call.reading else (*anything, corrupt)

    return drawn_from(seed, share, choices)


def lost(bucket: str) -> Plan:
    """The bucket is not there."""
    return lambda call: Refuse(404) if call.bucket == bucket else None


def nothing(call: Call) -> Fault | None:
    """No fault."""
    return None


class S3Proxy:
    """Use as `with`. `plan` may change at any time; `calls` and `befallen` count calls and faults."""

    def __init__(self, s3: S3Server) -> None:
        self._url = s3.endpoint_url
        self.plan: Plan = nothing
        self.calls: Counter[str] = Counter()
        self.befallen: Counter[str] = Counter()

    def __enter__(self) -> S3Proxy:
        self._loop, url = asyncio.new_event_loop(), Future[str]()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(url),), name="s3proxy")
        self._thread.start()
        self.endpoint_url = url.result(timeout=30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(timeout=30)
        self._loop.close()

    async def _serve(self, url: Future[str]) -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        async with aiohttp.ClientSession(auto_decompress=False) as self._http:
            await runner.setup()
            listening = await listen(runner, "127.0.0.1", 0)
            url.set_result(f"http://127.0.0.1:{runner.addresses[0][1]}")
            await self._end.wait()
            await close(runner, [listening])

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        call = _call(request)
        fault = self.plan(call)
        self.calls[call.method] += 1
        self.befallen[type(fault).__name__] += fault is not None
        match fault:
            case Refuse(status, reason, after):
                await request.read()
                return _refusal(status, reason or _CODES[status], after)
            case Delay(seconds):
                await asyncio.sleep(seconds)
        return await self._passed(request, fault)

    async def _passed(self, request: web.Request, fault: Fault | None) -> web.StreamResponse:
        headers, body = passed_on(request.headers), await request.read()
        if isinstance(fault, Corrupt):  # on its way to the server, or else on its way back
            body = flipped(body, fault)
        url = URL(self._url + request.raw_path, encoded=True)
        async with self._http.request(request.method, url, data=body or None, headers=headers) as answer:
            got, theirs = await answer.read(), passed_on(answer.headers)
        match fault:
            case Lose():
                return dropped(request)
            case Cut() if got:
                return await cut_off(request, answer.status, theirs, got)
            case Corrupt():
                got = flipped(got, fault)
            case Shorten():
                got = got[: len(got) // 2]
        if request.method == "HEAD":
            return web.Response(status=answer.status, headers=dict(answer.headers))
        return web.Response(status=answer.status, body=got, headers=theirs)


def _call(request: web.Request) -> Call:
    bucket, _, key = request.path.lstrip("/").partition("/")
    return Call(request.method, bucket, key, request.method == "GET" and not key)


def _refusal(status: int, code: str, after: int) -> web.Response:
    message = f"<Error><Code>{code}</Code><Message>a fault that was asked for</Message></Error>"
    headers = {"Retry-After": str(after)} if after else {}
    return web.Response(status=status, text=message, content_type="application/xml", headers=headers)
