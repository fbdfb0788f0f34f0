"""Many requests at once: how their number grows, and when nothing more is begun."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from coxswain_operator.slow_start import SlowStartBatch, interleave


class Server:
    """Counts requests, and how many are under way at once."""

    def __init__(self, failing: int = -1) -> None:
        self.begun, self.under_way, self.most, self.ended = 0, 0, 0, 0
        self._failing = failing

    async def __call__(self) -> bool:
        number, self.begun = self.begun, self.begun + 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        self.ended += 1
        if number == self._failing:
            raise OSError("quota")
        return True


def calls(server: Server, count: int) -> list[Callable[[], Awaitable[bool]]]:
    return [server for _ in range(count)]


async def test_everything_is_done_with_no_more_under_way_than_allowed() -> None:
    server = Server()
    assert await SlowStartBatch(calls(server, 1000), at_once=64).run()
    assert (server.ended, server.most) == (1000, 64)


async def test_a_cluster_that_refuses_everything_is_asked_once() -> None:
    server = Server(failing=0)
    with pytest.raises(OSError, match="quota"):
        await SlowStartBatch(calls(server, 1000)).run()
    assert server.begun == 1


async def test_after_a_failure_nothing_is_begun_and_what_is_under_way_ends() -> None:
    server = Server(failing=20)
    with pytest.raises(OSError, match="quota"):
        await SlowStartBatch(calls(server, 1000)).run()
    assert server.begun == server.ended < 60


async def test_when_the_time_is_up_the_rest_is_left() -> None:
    server = Server()
    assert await SlowStartBatch(calls(server, 1000), seconds=0.0).run()
    assert server.begun == 0


async def test_work_that_goes_on_starts_with_the_workers_that_it_had() -> None:
    server = Server()
    first = SlowStartBatch(calls(server, 100), at_once=16)
    assert await first.run()
    assert first.workers == 16
    again = Server(failing=0)
    with pytest.raises(OSError, match="quota"):
        await SlowStartBatch(calls(again, 100), at_once=16, at_first=first.workers).run()
    assert again.begun >= 16


async def test_an_unexpected_result_stops_no_other_call() -> None:
    async def taken() -> bool:
        return False

    server = Server()
    assert not await SlowStartBatch([taken, *calls(server, 10)]).run()
    assert server.ended == 10


def test_two_lists_are_done_in_turn() -> None:
    assert list(interleave([1, 2, 3, 4], [10, 20])) == [1, 10, 2, 20, 3, 4]
