"""Reads by name: which of them reach the server, and which answers are forgotten."""

from __future__ import annotations

import json
from typing import cast

import pytest

from coxswain_operator.cluster import Denied
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.read_cache import ReadCache
from coxswain_operator.kubernetes.resources import SECRETS


class Server:
    """One Secret, and the time."""

    def __init__(self) -> None:
        self.now, self.reads, self.token = 1000.0, 0, "first"
        self.permitted = True

    async def send(self, method: str, path: str) -> bytes:
        assert (method, path) == ("GET", "/api/v1/namespaces/lab/secrets/demo")
        self.reads += 1
        if not self.permitted:
            raise Denied("Forbidden", "no")
        if not self.token:
            raise NotFound("no Secret")
        return json.dumps({"token": self.token}).encode()


def caching(server: Server) -> ReadCache:
    return ReadCache(cast("Connection", server), SECRETS, 300.0, lambda: server.now)


@pytest.mark.parametrize(("age", "token"), [(299, "first"), (300, "second")])
async def test_an_object_is_read_again_after_its_time(age: float, token: str) -> None:
    server = Server()
    cache = caching(server)
    await cache.get("lab", "demo")
    server.now, server.token = 1000.0 + age, "second"
    assert await cache.get("lab", "demo") == {"token": token}


async def test_a_missing_object_is_none_and_is_asked_for_each_time() -> None:
    server = Server()
    cache, server.token = caching(server), ""
    assert [await cache.get("lab", "demo") for _ in range(2)] == [None, None] and server.reads == 2


async def test_an_object_that_may_not_be_read_is_none_and_is_asked_for_after_its_time() -> None:
    server = Server()
    cache, server.permitted = caching(server), False
    assert [await cache.get("lab", "demo") for _ in range(2)] == [None, None] and server.reads == 1
    server.permitted, server.now = True, 1300.0
    assert await cache.get("lab", "demo") == {"token": "first"}


async def test_an_object_that_would_be_read_again_is_not_kept() -> None:
    server = Server()
    cache = caching(server)
    await cache.get("lab", "demo")
    server.now, server.token = 1300.0, ""
    assert await cache.get("lab", "demo") is None
    server.token = "second"
    assert await cache.get("lab", "demo") == {"token": "second"}
