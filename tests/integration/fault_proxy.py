"""A proxy between a client and a real API server that adds the faults of a plan.

    async with FaultProxy(api, plans) as proxy:
        find_access(proxy.kubeconfig)

A plan belongs to a namespace, so that many lifecycles can share one proxy; other calls pass.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeAlias

import aiohttp
from aiohttp import web

from coxswain_link.listening import close, listen
from tests.faults import Cut, Delay, Lose, Refuse, cut_off, drawn_from, dropped, every, lines, passed_on
from tests.integration.apiserver import ApiServer

__all__ = ["Break", "Call", "Cut", "Delay", "Fault", "FaultProxy", "Lose", "Plan", "Refuse", "drawn", "every"]

_WORDS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as far as plans look at it."""

    method: str
    path: str
    watch: bool

    @property
    def listing(self) -> bool:
        return self.method == "GET" and not self.watch and self.path.count("/") <= self._depth

    @property
    def writing(self) -> bool:
        return self.method != "GET"

    @property
    def _depth(self) -> int:
        """Slashes in the path of a collection."""
        return 5 if self.path.startswith("/api/") else 6


@dataclass(frozen=True, slots=True)
class Break:
    """A watch goes wrong after that many lines."""

    how: Literal["silent", "torn", "reset", "expired", "error", "ended"]
    lines: int = 1


Fault: TypeAlias = Refuse | Lose | Cut | Delay | Break
Plan: TypeAlias = Callable[[Call], "Fault | None"]


def drawn(seed: int, share: float) -> Plan:
    """A fault for this share of all calls, chosen from those that fit the call."""
    anything: tuple[Fault, ...] = (
        *(Refuse(status) for status in (500, 503, 504)), Refuse(429, after=1), Lose(), Cut(), Delay(0.3),
    )  # fmt: skip
    watches = (
        *(Break(how, lines) for how in ("silent", "torn", "reset", "expired", "error", "ended") for lines in (0, 1, 3)),
    )

    def choices(call: Call) -> tuple[Fault, ...]:
        of_writes = (Refuse(409, "Conflict"),) if call.method == "PATCH" else ()
        return (*watches, Refuse(410), *anything[:4]) if call.watch else (*anything, *of_writes)

    return drawn_from(seed, share, choices)


class FaultProxy:
    """Use as `async with`.

    `plans` by namespace may be changed at any time; `faults` counts what has gone wrong, by
    namespace. `ahead`: seconds by which its answers are dated later than the server's.
    """

    def __init__(self, api: ApiServer, folder: Path, ahead: float = 0.0) -> None:
        self._api, self._folder, self._ahead = api, folder, ahead
        self.plans: dict[str, Plan] = {}
        self.faults: Counter[str] = Counter()

    async def __aenter__(self) -> FaultProxy:
        trust = ssl.create_default_context(cafile=str(self._api.ca))
        connector = aiohttp.TCPConnector(ssl=trust, limit=0)
        self._http = aiohttp.ClientSession(self._api.url, connector=connector)
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        self._listening = await listen(self._runner, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.kubeconfig = self._api.access_for(self._folder / "kubeconfig", url=url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close(self._runner, [self._listening])
        await self._http.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        call = Call(request.method, request.path, "watch" in request.query)
        match self._fault(call):
            case Refuse(status, reason, after):
                return _refusal(status, reason, after)
            case Break() as fault:
                return await self._watched(request, fault)
            case None if call.watch:
                return await self._watched(request, None)
            case Delay(seconds):
                await asyncio.sleep(seconds)
                return await self._passed(request, None)
            case fault:
                return await self._passed(request, fault)

    def _fault(self, call: Call) -> Fault | None:
        namespace = call.path.partition("/namespaces/")[2].partition("/")[0]
        plan = self.plans.get(namespace)
        fault = plan(call) if plan is not None else None
        self.faults[namespace] += fault is not None
        return fault

    def _asked(self, request: web.Request, body: bytes = b"") -> aiohttp.client._RequestContextManager:
        headers = {**_plain(request.headers), "Accept-Encoding": "identity"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        return self._http.request(request.method, request.rel_url, data=body or None, headers=headers, timeout=timeout)

    async def _passed(self, request: web.Request, fault: Fault | None) -> web.StreamResponse:
        async with self._asked(request, await request.read()) as answer:
            body, headers = await answer.read(), _plain(answer.headers)
        if self._ahead:
            headers["Date"] = formatdate(time.time() + self._ahead, usegmt=True)
        match fault:
            case Lose():
                return dropped(request)
            case Cut():
                return await cut_off(request, answer.status, headers, body)
        return web.Response(status=answer.status, body=body, headers=headers)

    async def _watched(self, request: web.Request, fault: Break | None) -> web.StreamResponse:
        async with self._asked(request) as answer:
            response = web.StreamResponse(status=answer.status, headers=_plain(answer.headers))
            await response.prepare(request)
            number = 0
            async for line in lines(answer):
                if fault is not None and number == fault.lines:
                    return await _broken(request, response, fault, line)
                await response.write(line)
                number += 1
            return response


async def _broken(request: web.Request, response: web.StreamResponse, fault: Break, line: bytes) -> web.StreamResponse:
    """What becomes of the stream in place of this line."""
    match fault.how:
        case "silent":
            await asyncio.Event().wait()  # until the client goes
        case "torn":
            await response.write(line[: len(line) // 2])
        case "expired":
            await response.write(_error(410))
        case "error":
            await response.write(_error(500))
        case "reset":
            return dropped(request)
    return response


def _refusal(status: int, reason: str, after: int) -> web.Response:
    headers = {"Retry-After": str(after)} if after else {}
    return web.json_response(_status(status, reason), status=status, headers=headers)


def _error(code: int) -> bytes:
    return json.dumps({"type": "ERROR", "object": _status(code)}).encode() + b"\n"


def _status(code: int, reason: str = "") -> dict[str, object]:
    words = reason or _WORDS.get(code, "")
    head = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return {**head, "code": code, "reason": words, "message": f"a fault that was asked for: {words or code}"}


def _plain(headers: Mapping[str, str]) -> dict[str, str]:
    return passed_on(headers, "host", "content-encoding", "accept-encoding")
