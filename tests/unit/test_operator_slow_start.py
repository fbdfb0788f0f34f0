"""Slow start of concurrent calls: how many run at once, and when no call is begun."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from coxswain_operator.slow_start import SlowStartBatch, interleave

pytestmark = pytest.mark.looptime


class Server:
    """Counts calls, and the most that run at once."""

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


async def test_a_thousand_calls_run_at_most_64_at_once() -> None:
    server = Server()
    assert await SlowStartBatch(calls(server, 1000), at_once=64).run()
    assert (server.ended, server.most) == (1000, 64)


async def test_a_first_call_that_fails_is_the_only_one() -> None:
    server = Server(failing=0)
    with pytest.raises(OSError, match="quota"):
        await SlowStartBatch(calls(server, 1000), 64).run()
    assert server.begun == 1


async def test_after_a_failure_no_call_is_begun_and_begun_calls_end() -> None:
    server = Server(failing=20)
    with pytest.raises(OSError, match="quota"):
        await SlowStartBatch(calls(server, 1000), 64).run()
    assert server.begun == server.ended < 60


async def test_no_call_is_begun_after_the_time_limit() -> None:
    server = Server()
    assert await SlowStartBatch(calls(server, 1000), 64, seconds=0.0).run()
    assert server.begun == 0


async def test_a_batch_that_continues_starts_with_the_workers_of_the_one_before() -> None:
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
    assert not await SlowStartBatch([taken, *calls(server, 10)], 4).run()
    assert server.ended == 10


async def test_the_first_of_several_errors_is_raised() -> None:
    async def fail(after: float) -> bool:
        await asyncio.sleep(after)
        raise OSError(f"after {after}")

    begun = [partial(fail, seconds) for seconds in (3.0, 1.0, 2.0)]
    with pytest.raises(OSError, match=r"after 1\.0"):
        await SlowStartBatch(begun, 4, at_first=3).run()


async def test_a_call_that_is_cancelled_from_within_is_an_error_and_a_batch_that_is_cancelled_ends_its_calls() -> None:
    async def cancelled() -> bool:
        raise asyncio.CancelledError

    server = Server()
    with pytest.raises(asyncio.CancelledError):
        await SlowStartBatch([cancelled, *calls(server, 10)], 4).run()
    assert server.begun == 0

    async def for_ever() -> bool:
        await asyncio.sleep(1e9)
        return True

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await SlowStartBatch([for_ever], 4).run()
    assert len(asyncio.all_tasks()) == 1


def test_interleave_alternates_until_the_shorter_list_ends() -> None:
    assert list(interleave([1, 2, 3, 4], [10, 20])) == [1, 10, 2, 20, 3, 4]


async def test_an_unexpected_result_is_kept_when_calls_that_began_before_it_end_after_it() -> None:
    ended = asyncio.Event()

    async def slow() -> bool:
        await ended.wait()
        return True

    async def taken() -> bool:
        asyncio.get_running_loop().call_soon(ended.set)
        return False

    assert not await SlowStartBatch([slow, taken], 4, at_first=2).run()


async def test_a_batch_says_whether_its_time_was_up_before_its_last_call() -> None:
    whole, cut = SlowStartBatch(calls(Server(), 5), 4), SlowStartBatch(calls(Server(), 5), 4, seconds=0.0)
    assert await whole.run() and await cut.run()
    assert (whole.is_done, cut.is_done) == (True, False)


async def test_a_batch_that_is_cut_in_its_middle_is_not_done_and_begins_no_further_call() -> None:
    begun = []

    async def slow() -> bool:
        begun.append(slow)
        await asyncio.sleep(1)
        return True

    batch = SlowStartBatch([slow] * 9, at_once=1, seconds=2.5)
    assert await batch.run()
    assert (len(begun), batch.is_done) == (3, False)
