"""The server of control calls, on aiohttp: token, generation, bodies, and three common paths."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from coxswain.errors import Refused, Retryable, Stale
from coxswain.structs import UNDECODABLE
from coxswain.wire import GENERATION_HEADER, TOKEN_HEADER, Fault
from coxswain_link.job_ended import JobEnded
from coxswain_link.listening import close, listen
from coxswain_link.metrics import MetricsRegistry
from coxswain_link.queries import BadQuery, whole
from coxswain_link.status import addresses

Handler = Callable[[web.Request, Any], Awaitable[Any]]

BACKLOG = 4096
"""Connections that wait to be accepted: all of a large job connect at once, also while the loop is busy."""

KEEP_ALIVE_SECONDS = 3600.0
"""Seconds of an idle connection: beyond `http_client.KEEP_ALIVE_SECONDS`, so that the client closes it first."""


class HttpService:
    """HTTP server of one service.

    Handlers get (request, body or None) and return a struct, None (204) or a Response.

    `generation()` is the current world generation: a request that carries an older one is answered
    409.
    """

    def __init__(
        self,
        token: str,
        generation: Callable[[], int],
        metrics: MetricsRegistry,
        ready: Callable[[], bool] = lambda: True,
        problem: Callable[[], str] = lambda: "",
    ) -> None:
        """`problem`: why only a restart helps, which /healthz answers with 503; empty: nothing is wrong."""
        self._token, self._generation, self._metrics, self._ready = token, generation, metrics, ready
        self._problem = problem
        self.app = web.Application(client_max_size=64 << 20)
        self._runner: web.AppRunner | None = None
        self._listening = list[socket.socket]()
        self.app.router.add_get("/healthz", self._health)
        self.app.router.add_get("/readyz", self._readiness)
        self.app.router.add_get("/metrics", self._exposition)

    def route(self, method: str, path: str, handler: Handler, body_type: type | None = None) -> None:
        """Adds a call that needs the job's token."""

        async def wrapped(request: web.Request) -> web.StreamResponse:
            try:
                self._admit(request)
                body = msgspec.json.decode(await _content(request), type=body_type) if body_type else None
                return reply(await handler(request, body))
            except (Refused, Retryable, Stale, JobEnded, BadQuery, *UNDECODABLE) as error:
                return refuse(error)

        self.app.router.add_route(method, path, wrapped)

    def page(self, path: str, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> None:
        """Adds a page for people. Without the token only from the machine or pod itself, as through `kubectl port-forward`."""

        async def wrapped(request: web.Request) -> web.StreamResponse:
            if is_loopback(request.remote) or self._has_token(request):
                return await handler(request)
            text = "this page is shown to the pod itself alone; open it by `kubectl port-forward`, or send the job's token\n"
            return web.Response(status=403, text=text)

        self.app.router.add_get(path, wrapped)

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port (the kernel's choice for 0). `host`: an address."""
        self._runner = web.AppRunner(
            self.app, access_log=None, shutdown_timeout=1.0, keepalive_timeout=KEEP_ALIVE_SECONDS
        )
        await self._runner.setup()
        for address in addresses(host):
            self._listening.append(await listen(self._runner, address, port, BACKLOG))
            port = port or int(self._runner.addresses[0][1])
        return port

    async def stop(self) -> None:
        if self._runner is not None:
            await close(self._runner, self._listening)

    def _admit(self, request: web.Request) -> None:
        if not self._has_token(request):
            raise Refused("TokenRejected", "wrong or missing job token")
        theirs = whole(request.headers, GENERATION_HEADER, self._generation())
        if theirs < self._generation():
            raise Stale(f"generation {theirs} is over; the current one is {self._generation()}")

    def _has_token(self, request: web.Request) -> bool:
        sent = request.headers.get(TOKEN_HEADER, "").encode(errors="surrogateescape")  # as it came: it may be no text
        return hmac.compare_digest(sent, f"Bearer {self._token}".encode())

    async def _health(self, _: web.Request) -> web.Response:
        problem = self._problem()
        return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)

    async def _readiness(self, _: web.Request) -> web.Response:
        return web.Response(text="ready\n") if self._ready() else web.Response(text="not ready\n", status=503)

    async def _exposition(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.exposition(), content_type="text/plain", charset="utf-8")


async def _content(request: web.Request) -> bytes:
    """Raises Retryable where the caller has ended: that is no error of the service, and no answer arrives."""
    try:
        return await request.read()
    except ConnectionResetError as error:
        raise Retryable(f"the caller has gone: {error}") from error


def is_loopback(address: str | None) -> bool:
    """Whether a peer's address is of the machine or pod itself."""
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def reply(result: Any) -> web.StreamResponse:
    if isinstance(result, web.StreamResponse):
        return result
    if result is None:
        return web.Response(status=204)
    return web.Response(body=msgspec.json.encode(result), content_type="application/json")


def refuse(error: Exception) -> web.Response:
    """The HTTP form of an error; `coxswain_link.http_client` turns it back."""
    if isinstance(error, JobEnded):
        return _json(410, error.finished)
    if isinstance(error, Stale):
        return web.Response(status=409, text=str(error))
    if isinstance(error, Retryable):
        return web.Response(status=503, text=str(error))
    if isinstance(error, Refused):
        return _json(401 if error.reason == "TokenRejected" else 422, Fault(error.reason, error.message))
    return web.Response(status=400, text=str(error))


def _json(status: int, body: Any) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
