"""A server that answers a connection of the operator as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from coxswain_link.listening import close, listen
from coxswain_operator.kubernetes.access import Access
from coxswain_operator.kubernetes.connection import Connection

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answering(
    answer: Answer, authorization: Callable[[], str] = lambda: "", **options: Any
) -> AsyncIterator[Connection]:
    """`options`: of the connection."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    listening = await listen(runner, "127.0.0.1", 0)
    host, port = listening.getsockname()
    try:
        async with Connection(Access(f"http://{host}:{port}", authorization=authorization), **options) as connection:
            yield connection
    finally:
        await close(runner, [listening])
