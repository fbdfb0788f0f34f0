"""The queue under load: what says that it hangs, and what only says that much is to do."""

from __future__ import annotations

import asyncio
import time

from coxswain_operator.workqueue import MAX_CONCURRENT, Key, RequeueDelay, WorkQueue


async def test_a_queue_stalls_when_keys_wait_and_no_call_ends_and_not_before() -> None:
    """A failing server ends calls late and with errors: another operator would fare no better."""
    begun, goes_on = list[Key](), asyncio.Event()
    one_ends = asyncio.Event()

    async def process(key: Key) -> RequeueDelay | None:
        begun.append(key)
        await (one_ends if key == begun[0] else goes_on).wait()
        raise OSError("the server is slow")

    async with WorkQueue(process) as queue:
        assert queue.stalled(time.monotonic() + 1000) == 0.0  # nothing waits
        for number in range(MAX_CONCURRENT + 2):
            queue.add(("lab", f"job-{number}"))
        await until(lambda: len(begun) == MAX_CONCURRENT)
        assert 999 < queue.stalled(time.monotonic() + 1000) < 1010
        before = time.monotonic()
        one_ends.set()
        await until(lambda: len(begun) == MAX_CONCURRENT + 1)
        assert queue.oldest(before + 1000) > 999 > 998 > queue.stalled(before + 998)
        goes_on.set()


async def until(holds: object) -> None:
    async with asyncio.timeout(10):
        while not holds():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.001)
