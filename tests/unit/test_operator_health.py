"""Health of the operator: lag of its event loop, and limits."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from coxswain_operator.health import HealthStatus, LoopLag


async def test_a_loop_that_was_held_up_is_reported_and_fades_with_time() -> None:
    now = 100.0
    lag = LoopLag(nap=0, clock=lambda: now)
    measuring = asyncio.create_task(lag.measure())
    await asyncio.sleep(0)
    now += 0.5  # the loop is blocked
    await asyncio.sleep(0)
    assert "the event loop was up to 0.50 s late" in HealthStatus(lag=lag.seconds).text
    for _ in range(10):
        await asyncio.sleep(0)
    assert 0.1 < lag.seconds < 0.2
    measuring.cancel()
    with suppress(asyncio.CancelledError):
        await measuring


def test_a_silent_stream_a_waiting_job_and_an_old_lease_are_ailments_with_their_seconds() -> None:
    assert HealthStatus(silence=200).problem == "a watch has been silent for 200 s; at most 180 are normal"
    stalled = "jobs wait, and no pass has ended for 301 s; at most 300 are normal"
    assert HealthStatus(stalled=301).problem == stalled
    assert HealthStatus(unrenewed=61).problem == "the Lease was last renewed 61 s ago; at most 60 are normal"
    assert HealthStatus(silence=179, waiting=9999, stalled=299, unrenewed=59, lag=9).problem == ""
