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


@pytest.mark.parametrize(
    ("answers", "limit"),
    [
        ("g", 64),
        ("f", 32),
        ("ff", 16),
        ("ffffffff", 1),
        ("e", 64),
        ("s", 32),
        ("sss", 16),
        ("fffs", 8),
        ("f" + 32 * "g", 32),
        ("f" + 33 * "g", 33),
    ],
)
async def test_a_failure_halves_slowness_leaves_a_quarter_and_a_round_of_good_answers_adds_one(
    answers: str, limit: int
) -> None:
    server = Server()
    for answer in answers:
        server.failing, server.seconds = answer == "f", {"s": 1.1, "e": 1.0}.get(answer, 0.1)
        await server.answers(1)
    assert server.pace.limit == limit
    assert await server.answers(100) == limit


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_one_request_is_always_allowed(most: int) -> None:
    server = Server(most)
    server.seconds = 2.0
    await server.answers(10)
    assert server.pace.limit == await server.answers(3) == 1


async def test_an_overload_is_raised() -> None:
    with pytest.raises(Busy):
        async with AdaptiveLimiter(1).slot(Busy):
            raise Busy


async def test_places_go_to_those_that_wait_in_their_order_and_one_that_is_cancelled_passes_it_on() -> None:
    pace, order = AdaptiveLimiter(1), list[str]()

    async def ask(name: str) -> None:
        async with pace.slot(Busy):
            order.append(name)
            await asyncio.sleep(0)

    async with pace.slot(Busy):
        waiting = [asyncio.create_task(ask(name)) for name in "abce"]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.sleep(0)
    waiting[0].cancel()  # it has just got the place
    waiting.append(asyncio.create_task(ask("d")))
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting, return_exceptions=True)
    assert order == ["c", "e", "d"]


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
