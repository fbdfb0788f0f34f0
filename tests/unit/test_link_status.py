"""Callers of the status pages that say nothing, or half of it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from urllib.request import urlopen

import pytest

from coxswain_link.metrics import build
from coxswain_link.status import StatusServer

DEADLINE = 20.0


@pytest.fixture
def server() -> Iterator[StatusServer]:
    with closing(StatusServer("127.0.0.1", 0, build("loader"), silence=0.2)) as found:
        yield found


def caller(server: StatusServer, said: bytes = b"") -> socket.socket:
    found = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE)
    found.sendall(said)
    return found


@pytest.mark.parametrize("said", [b"", b"GET /hea", b"GET /healthz HTTP/1.1\r\nHost: a"])
def test_a_caller_that_falls_silent_is_hung_up_on_without_an_answer(server: StatusServer, said: bytes) -> None:
    """Else each would keep a thread of the service for good."""
    with caller(server, said) as silent:
        assert silent.recv(1024) == b""


def test_a_connection_that_is_kept_open_is_closed_once_it_is_idle(server: StatusServer) -> None:
    with caller(server, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n") as idle, idle.makefile("rb") as answer:
        assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
        assert answer.read().endswith(b"\r\n\r\nok\n"), "it has read to the end of the connection"


def test_probes_are_answered_beside_many_callers_that_say_nothing() -> None:
    with ExitStack() as open_, closing(StatusServer("127.0.0.1", 0, build("loader"))) as server:
        for _ in range(50):
            open_.enter_context(caller(server))
        assert urlopen(f"http://127.0.0.1:{server.port}/healthz", timeout=DEADLINE).read() == b"ok\n"
