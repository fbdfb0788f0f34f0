"""Health of the operator: lag of its event loop, and limits."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from coxswain_operator.health import HealthStatus, LoopLag


async def test_the_lag_of_a_blocked_event_loop_is_shown_and_decays() -> None:
    lag = LoopLag(nap=0.01)
    measuring = asyncio.create_task(lag.measure())
    await asyncio.sleep(0.02)
    time.sleep(0.3)  # noqa: ASYNC251 - blocks the loop, which is measured
    async with asyncio.timeout(10):
        while lag.seconds < 0.25:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert "the event loop was recently up to 0." in HealthStatus(lag=lag.seconds).text
        while lag.seconds > 0.2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    measuring.cancel()
    with suppress(asyncio.CancelledError):
        await measuring


def test_a_silent_watch_a_waiting_job_and_an_old_lease_are_problems_beyond_their_limits() -> None:
    assert HealthStatus(silence=200).problem == "a watch has been silent for 200 s; at most 180 are normal"
    assert HealthStatus(waiting=301).problem == "a job has waited 301 s to be reconciled; at most 300 are normal"
    assert HealthStatus(unrenewed=61).problem == "the Lease was last renewed 61 s ago; at most 60 are normal"
    assert HealthStatus(silence=179, waiting=299, unrenewed=59, lag=9).problem == ""
