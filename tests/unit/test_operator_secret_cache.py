"""Secrets by name: which reads reach the server, and which answers are forgotten."""

from __future__ import annotations

import json
from typing import cast

import pytest

from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.secret_cache import SecretCache


class Server:
    """One Secret, and the time."""

    def __init__(self) -> None:
        self.now, self.reads, self.token = 1000.0, 0, "first"

    async def send(self, method: str, path: str) -> bytes:
        assert (method, path) == ("GET", "/api/v1/namespaces/lab/secrets/demo")
        self.reads += 1
        if not self.token:
            raise NotFound("no Secret")
        return json.dumps({"token": self.token}).encode()


def caching(server: Server) -> SecretCache:
    return SecretCache(cast("Connection", server), lambda: server.now)


@pytest.mark.parametrize(("age", "token"), [(299, "first"), (300, "second")])
async def test_a_secret_is_read_again_after_its_time(age: float, token: str) -> None:
    server = Server()
    cache = caching(server)
    await cache.get("lab", "demo")
    server.now, server.token = 1000.0 + age, "second"
    assert await cache.get("lab", "demo") == {"token": token}


async def test_a_forgotten_secret_is_read_again() -> None:
    server = Server()
    cache = caching(server)
    await cache.get("lab", "demo")
    cache.forget(("lab", "demo"))
    cache.forget(("lab", "unknown"))
    server.token = "second"
    assert await cache.get("lab", "demo") == {"token": "second"}


async def test_a_missing_secret_is_none_and_is_asked_for_each_time() -> None:
    server = Server()
    cache, server.token = caching(server), ""
    assert [await cache.get("lab", "demo") for _ in range(2)] == [None, None] and server.reads == 2


async def test_a_written_secret_is_not_read() -> None:
    server = Server()
    cache = caching(server)
    cache.note(("lab", "demo"), b'{"token": "mine"}')
    assert await cache.get("lab", "demo") == {"token": "mine"} and server.reads == 0


async def test_a_secret_that_would_be_read_again_is_not_kept_when_another_comes() -> None:
    server = Server()
    cache = caching(server)
    cache.note(("lab", "old"), b"{}")
    server.now += 1
    cache.note(("lab", "young"), b"{}")
    server.now += 299
    cache.note(("lab", "new"), b"{}")
    assert set(cache._known) == {("lab", "young"), ("lab", "new")}
