"""The sockets that an aiohttp server listens on, from `listen` to `close`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

from aiohttp import web

_TURNS = 3  # of the loop, from an accepted connection to its handler


async def listen(runner: web.AppRunner, host: str, port: int, backlog: int = 128) -> socket.socket:
    """Listens on an address, or without one on all of both families: pods of some clusters have IPv6 alone.

    Port 0 is the kernel's choice. `backlog`: connections that wait to be accepted.
    """
    both = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=backlog, dualstack_ipv6=both)
    await web.SockSite(runner, listening, backlog=backlog).start()
    return listening


async def close(runner: web.AppRunner, listening: Iterable[socket.socket]) -> None:
    """Accepts no more, then closes what has been accepted.

    asyncio loses a connection that it accepts in the turn in which its server closes (CPython issue 109564): the caller
    waits until the socket is collected. So the server closes some turns later.
    """
    for each in listening:
        asyncio.get_running_loop().remove_reader(each)
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    await runner.cleanup()
