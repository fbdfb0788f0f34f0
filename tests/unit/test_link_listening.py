"""A server that ends closes every connection, also one that it accepts in that moment."""

import asyncio
import gc
import socket
import sys

import pytest
from aiohttp import web

from coxswain_link.listening import close, listen


@pytest.fixture
def unclosed(monkeypatch):
    """What the interpreter finds unclosed."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: found.append(str(unraisable.exc_value)))
    return found


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_while_the_server_ends_is_closed(turns, unclosed):
    """`turns` of the loop between the connection and the end: accepted, known to the server, handled."""
    runner = web.AppRunner(web.Application(), shutdown_timeout=0.1)
    await runner.setup()
    listening = await listen(runner, "127.0.0.1", 0)
    with socket.create_connection(listening.getsockname()) as caller:
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(close(runner, [listening]), 10)
        gc.collect()
        assert unclosed == []
        caller.settimeout(10)
        assert ended(caller)


async def test_nothing_connects_to_a_server_that_has_ended():
    runner = web.AppRunner(web.Application())
    await runner.setup()
    listening = await listen(runner, "127.0.0.1", 0)
    address = listening.getsockname()
    await close(runner, [listening])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def ended(caller):
    try:
        return caller.recv(1) == b""
    except ConnectionResetError:
        return True
