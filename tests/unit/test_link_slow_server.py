"""A server whose event loop is busy is slow, not gone: connections wait for it, and ranks keep asking it."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import pytest
from aiohttp import web

from coxswain.wire import StepDirective
from coxswain_link import http_client, http_server
from coxswain_link.http_client import Client
from coxswain_link.http_server import HttpService
from coxswain_link.metrics import build
from coxswain_train.worker.directives import REACH_DEADLINE, DirectiveClient
from coxswain_train.worker.world_check import WorldCheck
from tests.unit.test_train_directives import Feed, Outbox, committed

RANKS = 1024
BUSY = 0.6  # seconds
STEP = 5
PLAN = next(p for p in committed(*range(8)).plans if p.step == STEP)


class ThreadServer:
    """Serves the end of a job from its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.service = HttpService("secret", lambda: 0, build("coordinator"))
        self.service.route("GET", "/v1/steps", self._answer)

    async def _answer(self, request: web.Request, _: None) -> StepDirective:
        return StepDirective(int(request.query["step"]), True, "Suspended", None)

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)


@pytest.fixture
def server() -> Iterator[tuple[ThreadServer, int]]:
    server = ThreadServer()
    server.thread.start()
    port = server.run(server.service.start("127.0.0.1", 0))
    yield server, port
    drain(port)
    server.run(server.service.stop())
    server.loop.call_soon_threadsafe(server.loop.stop)
    server.thread.join(20)
    server.loop.close()


def drain(port: int) -> None:
    """Returns once the server has seen the end of every connection of before: it accepts them in order.

    It reads the end of one that was closed while it accepts and answers later ones.
    """
    for _ in range(2):
        assert httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=20).is_success


@contextmanager
def connecting(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Sockets that have all begun to connect."""
    found = [socket.socket() for _ in range(count)]
    try:
        for each in found:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        yield found
    finally:
        for each in found:
            each.close()


def connected(found: list[socket.socket], until: float) -> int:
    """How many have a connection by then, whether or not the server's process accepts them."""
    with selectors.DefaultSelector() as waiting:
        for each in found:
            waiting.register(each, selectors.EVENT_WRITE)
        while waiting.get_map() and time.monotonic() < until:
            for key, _ in waiting.select(until - time.monotonic()):
                waiting.unregister(key.fileobj)
        return len(found) - len(waiting.get_map())


@pytest.mark.timeout(60)
def test_all_ranks_of_a_large_job_connect_to_a_coordinator_whose_loop_stands_still(server):
    slow, port = server
    held = threading.Event()
    slow.loop.call_soon_threadsafe(lambda: held.wait(20))  # until all have tried, however long that takes here
    with connecting(port, RANKS) as sockets:
        found = connected(sockets, time.monotonic() + BUSY)
    held.set()
    assert found == RANKS


@pytest.mark.timeout(60)
def test_a_rank_waits_for_a_slow_coordinator_and_does_not_pass_the_stop_that_others_follow(server):
    slow, port = server
    outbox: Any = Outbox()
    feed: Any = Feed(PLAN)
    held = threading.Event()
    slow.loop.call_soon_threadsafe(lambda: held.wait(20))
    with (
        connecting(port, RANKS),
        closing(Client(f"http://127.0.0.1:{port}", "secret", REACH_DEADLINE, retry=False)) as c,
    ):
        threading.Timer(BUSY, held.set).start()
        found = DirectiveClient(c, outbox, feed, WorldCheck(0, lambda: False), every=6, saved=0, rank=0).next(STEP)
    assert found == StepDirective(STEP, True, "Suspended", None)
    assert outbox.reachable


def test_an_idle_connection_outlasts_a_long_step_and_the_client_closes_it_first(monkeypatch):
    found, plain = {}, httpx.Client

    def recording(**settings):
        found.update(settings)
        return plain(**settings)

    monkeypatch.setattr(httpx, "Client", recording)
    minutes = 60.0
    assert 20 * minutes < http_client.KEEP_ALIVE_SECONDS < http_server.KEEP_ALIVE_SECONDS
    with closing(Client("http://127.0.0.1:9", "secret")):
        assert found["limits"].keepalive_expiry == http_client.KEEP_ALIVE_SECONDS
