"""A cancelled task ends, even when its event arrives in the same moment."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest
from aiohttp import web

from coxswain_operator.workqueue import RequeueDelay, WorkQueue
from tests.answering import answering

ROOT = Path(__file__).parents[2]


async def test_a_queue_closes_at_the_moment_at_which_a_key_is_added() -> None:
    turns = 0

    async def turn(_: tuple[str, str]) -> RequeueDelay:
        nonlocal turns
        turns += 1
        return RequeueDelay(0.0, 3600.0)

    async with asyncio.timeout(10):
        async with WorkQueue(turn) as queue:
            queue.add(("lab", "demo"))
            while not turns:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0)
            queue.add(("lab", "demo"))  # and leaves before the queue has heard it


async def test_a_call_that_is_cancelled_at_the_moment_at_which_its_own_time_is_over_ends() -> None:
    """As in a process that was stopped for longer than both: a leader would go on without the limit of its renewal."""
    asked, over = asyncio.Event(), asyncio.Event()

    async def answer(_: web.Request) -> web.StreamResponse:
        asked.set()
        await over.wait()
        return web.json_response({})

    async with answering(answer) as connection:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60) as limit:
                call = asyncio.create_task(connection.call("GET", "/x", deadline=0.3))
                await asked.wait()
                limit.reschedule(asyncio.get_running_loop().time())
                time.sleep(0.3)  # noqa: ASYNC251 (a process that is stopped)
                await call
        over.set()


def test_no_module_uses_wait_for() -> None:
    """In Python 3.11 it loses a cancellation that comes together with what was waited for; asyncio.timeout does not."""
    files = [f for part in ("core", "operator", "runtime", "cli") for f in (ROOT / part).rglob("*.py")]
    assert len(files) > 100
    assert [str(f.relative_to(ROOT)) for f in files if re.search(r"asyncio\.wait_for\(", f.read_text())] == []
