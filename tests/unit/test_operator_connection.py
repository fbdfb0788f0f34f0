"""How long a call of the API server may take, with all its waits, and when it is made again."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from aiohttp import web

from coxswain.errors import Refused, Retryable
from coxswain_operator.kubernetes.connection import Busy
from tests.answering import answering


async def test_the_wait_for_a_place_among_the_requests_under_way_counts_into_a_calls_time() -> None:
    asked, over = list[str](), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        await over.wait()
        return web.json_response({})

    async with answering(answer, at_once=1) as connection:
        first = asyncio.create_task(connection.call("GET", "/first", deadline=60.0))
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            with pytest.raises(Retryable, match=r"GET /second did not succeed within 0\.01 s: not sent: 1 other"):
                await connection.call("GET", "/second", deadline=0.01)
        over.set()
        await first
    assert asked == ["/first"]


async def test_the_last_attempt_of_a_call_has_only_the_time_that_is_left() -> None:
    """Two calls begin together: the one that may take longer ends later, whatever is asked again."""
    attempts, over, ended = count(), asyncio.Event(), list[str]()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/short" and next(attempts) == 0:
            await asyncio.sleep(0.2)  # a second attempt begins 0.2 s later at most
            return web.Response(status=503)
        await over.wait()
        return web.json_response({})

    async with answering(answer) as connection:

        async def call(path: str, deadline: float) -> None:
            with pytest.raises(Retryable):
                await connection.call("GET", path, deadline=deadline)
            ended.append(path)

        await asyncio.gather(call("/short", 0.6), call("/long", 0.75))
        over.set()
    assert ended == ["/short", "/long"]


@pytest.mark.parametrize(("asked", "after"), [("30", 30.0), ("86400", 120.0), ("", 0.0)])
async def test_a_pause_that_is_longer_than_a_calls_time_is_the_callers(asked: str, after: float) -> None:
    """Asking again within it is what the server forbids. One that is longer than /healthz allows would restart the operator."""
    calls = count()

    async def answer(_: web.Request) -> web.StreamResponse:
        next(calls)
        return web.Response(status=429, headers={"Retry-After": asked} if asked else {})

    async with answering(answer) as connection:
        with pytest.raises(Retryable) as call:
            await connection.call("POST", "/x", deadline=0.01 if asked == "" else 10.0)
        with pytest.raises(Retryable) as watch:
            await anext(connection.lines("/x", 1.0))
    assert (call.value.after, watch.value.after) == (after, after)
    assert not asked or next(calls) == 2


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_what_a_server_never_accepts_is_refused_at_once_with_its_words(status: int) -> None:
    """Anything else is a matter of others, and asked again by the next passes."""
    calls = count()

    async def answer(_: web.Request) -> web.StreamResponse:
        next(calls)
        return web.Response(status=status, text="too large")

    async with answering(answer) as connection:
        with pytest.raises(Refused, match="POST /x: too large") as raised:
            await connection.call("POST", "/x", {})
    assert (type(raised.value), raised.value.reason, next(calls)) == (Refused, f"Http{status}", 1)


@pytest.mark.parametrize(("first", "kind", "said"), [(503, Busy, "GET /x: too busy"), (None, Retryable, "no answer")])
async def test_a_call_whose_last_attempt_is_cut_short_says_what_the_attempt_before_met(
    first: int | None, kind: type[Retryable], said: str
) -> None:
    """Not that time was over, which hides a wrong certificate or an overload."""
    attempts, over = count(), asyncio.Event()

    async def answer(_: web.Request) -> web.StreamResponse:
        if first and next(attempts) == 0:
            return web.Response(status=first, text="too busy")
        await over.wait()
        return web.json_response({})

    async with answering(answer) as connection:
        with pytest.raises(Retryable) as raised:
            await connection.call("GET", "/x", deadline=0.5)  # a second attempt begins 0.2 s later at most
        over.set()
    assert type(raised.value) is kind
    assert str(raised.value) == f"GET /x did not succeed within 0.5 s: {said}"
