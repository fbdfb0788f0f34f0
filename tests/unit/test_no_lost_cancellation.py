"""A cancelled task ends, even when its event arrives in the same moment."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from coxswain_operator.workqueue import RequeueDelay, WorkQueue

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


def test_no_module_uses_wait_for() -> None:
    """In Python 3.11 it loses a cancellation that comes together with what was waited for; asyncio.timeout does not."""
    files = [f for part in ("core", "operator", "runtime", "cli") for f in (ROOT / part).rglob("*.py")]
    assert len(files) > 100
    assert [str(f.relative_to(ROOT)) for f in files if re.search(r"asyncio\.wait_for\(", f.read_text())] == []
