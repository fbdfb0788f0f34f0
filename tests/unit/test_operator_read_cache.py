"""Reads by name: which of them reach the server, and which answers are forgotten."""

from __future__ import annotations

import json
from itertools import pairwise
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


async def test_an_object_that_may_not_be_read_is_none_and_a_right_that_comes_a_second_later_is_seen() -> None:
    """A RoleBinding of the same `kubectl apply` may come after the job that needs it."""
    server = Server()
    cache, server.permitted = caching(server), False
    assert [await cache.get("lab", "demo") for _ in range(2)] == [None, None] and server.reads == 1
    server.permitted, server.now = True, 1001.0
    assert await cache.get("lab", "demo") == {"token": "first"}


async def test_a_job_that_lacks_the_right_for_long_asks_ever_more_seldom_but_once_a_minute() -> None:
    server = Server()
    cache, server.permitted, asked = caching(server), False, list[float]()
    for second in range(600):
        server.now, before = 1000.0 + second, server.reads
        assert await cache.get("lab", "demo") is None
        asked += [server.now] * (server.reads - before)
    assert [b - a for a, b in pairwise(asked)] == [1, 2, 4, 8, 16, 32] + [60] * 8


@pytest.mark.parametrize("token", ["first", ""])
async def test_an_answer_ends_a_row_of_refusals(token: str) -> None:
    server = Server()
    cache, server.permitted = caching(server), False
    for server.now in (1000.0, 1001.0, 1003.0):
        await cache.get("lab", "demo")
    server.permitted, server.now, server.token = True, 1007.0, token
    assert await cache.get("lab", "demo") == ({"token": token} if token else None)
    server.permitted, server.now = False, 1310.0
    await cache.get("lab", "demo")
    server.permitted, server.now, server.token = True, 1311.0, "second"
    assert await cache.get("lab", "demo") == {"token": "second"}


async def test_an_object_that_would_be_read_again_is_not_kept() -> None:
    server = Server()
    cache = caching(server)
    await cache.get("lab", "demo")
    server.now, server.token = 1300.0, ""
    assert await cache.get("lab", "demo") is None
    server.token = "second"
    assert await cache.get("lab", "demo") == {"token": "second"}
