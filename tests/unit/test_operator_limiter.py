"""How many requests are under way, by what the server makes of them."""

from __future__ import annotations

import asyncio

import pytest

from coxswain_operator.kubernetes.limiter import AdaptiveLimiter


class Busy(Exception):
    pass


class Server:
    """Time passes as it says; it fails while `failing`."""

    def __init__(self, most: int = 64) -> None:
        self.now, self.failing, self.seconds = 0.0, False, 0.1
        self.under_way = self.peak = 0
        self.pace = AdaptiveLimiter(most, lambda: self.now)

    async def answer(self) -> None:
        try:
            async with self.pace.slot(Busy):
                self.under_way += 1
                self.peak = max(self.peak, self.under_way)
                await asyncio.sleep(0)
                self.now += self.seconds
                self.under_way -= 1
                if self.failing:
                    raise Busy
        except Busy:
            pass

    async def answers(self, count: int) -> int:
        """The most that were under way."""
        self.peak = 0
        await asyncio.gather(*(self.answer() for _ in range(count)))
        return self.peak


async def test_a_server_that_keeps_up_gets_all_that_is_allowed() -> None:
    server = Server()
    server.seconds = 0.001
    assert await server.answers(500) == 64


async def test_one_overload_halves_and_what_was_under_way_then_counts_as_one() -> None:
    server = Server()
    server.failing = True
    await server.answers(64)
    assert server.pace.limit == 32


async def test_a_server_that_goes_on_failing_is_asked_one_thing_at_a_time() -> None:
    server = Server()
    server.failing = True
    await server.answers(1000)
    assert await server.answers(10) == 1


async def test_slow_answers_alone_leave_a_quarter() -> None:
    server = Server()
    server.seconds = 2.0
    await server.answers(1000)
    assert await server.answers(100) == 16


async def test_a_server_that_has_recovered_gets_more_and_more() -> None:
    server = Server()
    server.failing = True
    await server.answers(1000)
    server.failing, server.seconds = False, 0.0
    await server.answers(100)
    few = server.pace.limit
    await server.answers(5000)
    assert 5 < few < 64 == await server.answers(200)


async def test_a_request_that_is_cancelled_while_it_waits_takes_no_slot() -> None:
    server = Server(most=1)
    held = asyncio.Event()

    async def hold() -> None:
        async with server.pace.slot(Busy):
            await held.wait()

    holder = asyncio.create_task(hold())
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(server.answer(), 0.01)
    held.set()
    await holder
    assert await asyncio.wait_for(server.answers(3), 5) == 1
