"""How long a call of the API server may take, with all its waits, and when it is made again."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from email.utils import formatdate
from itertools import count

import pytest
from aiohttp import web

from coxswain.errors import Refused, Retryable
from coxswain_operator.kubernetes.connection import BrokenOff, Busy, NotFound
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


@pytest.mark.parametrize("ahead", [3600, -3600, 5])
@pytest.mark.parametrize("status", [200, 404, 503])
async def test_the_time_is_the_servers_by_the_date_of_whatever_it_answers(ahead: int, status: int) -> None:
    """It is what all operators of a cluster share, and what objects are dated by."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({}, status=status, headers={"Date": formatdate(time.time() + ahead, usegmt=True)})

    async with answering(answer) as connection:
        with suppress(NotFound, Retryable):
            await connection.call("GET", "/x", deadline=0.01 if status == 503 else 10.0)
        assert connection.now() - time.time() == pytest.approx(ahead, abs=2)


@pytest.mark.parametrize("date", ["now", "a second ago", "soon", "Mon, 99 Nov 2026 18:15:00 GMT", ""])
async def test_the_time_is_the_machines_where_the_servers_is_together_with_it_or_no_date(date: str) -> None:
    """Dates have whole seconds: a clock that followed each would go to and fro."""
    said = {"now": formatdate(usegmt=True), "a second ago": formatdate(time.time() - 1, usegmt=True)}.get(date, date)

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({}, headers={"Date": said})

    async with answering(answer) as connection:
        await connection.call("GET", "/x")
        before = time.time()
        assert before <= connection.now() <= time.time()


@pytest.mark.parametrize(("broken", "kind"), [(True, BrokenOff), (False, Retryable)])
async def test_a_watch_whose_connection_breaks_is_another_error_than_a_silence(broken: bool, kind: type) -> None:
    """After a silence the server may have been restored from a backup; a connection that breaks is noticed at once."""
    over = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"line\n")
        if broken and request.transport:
            request.transport.abort()
        await over.wait()
        return response

    async with answering(answer) as connection:
        with pytest.raises(Retryable, match="GET /x broke off") as raised:
            async for line in connection.lines("/x", 30.0 if broken else 0.01):
                assert line == b"line"
        over.set()
    assert type(raised.value) is kind
