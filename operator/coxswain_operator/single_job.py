"""Reconciles one job without an operator's queue, for `cox run`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from coxswain.errors import Retryable
from coxswain_operator.cluster import Cluster, Conflict
from coxswain_operator.controller import RETRY_SECONDS, WATCHED, Controller, is_finished
from coxswain_operator.reconcile.actions import Observed
from coxswain_operator.views import Manifest
from coxswain_operator.workqueue import COALESCE_SECONDS

log = logging.getLogger(__name__)


async def run_job(
    controller: Controller, cluster: Cluster, namespace: str, name: str, leave: asyncio.Event | None = None
) -> Manifest | None:
    """Repeats passes until the job is finished; returns the job, or None if it does not exist.

    `leave`: once it is set, the pass under way is the last: a cancelled one might lose events of its status.
    """
    leave = leave or asyncio.Event()
    async with _watch_changes(cluster, namespace, leave) as changed:
        while not leave.is_set():
            try:
                observed = await controller.observe(namespace, name)
                if observed is None:
                    return None
                if is_finished(observed):
                    return observed.job
                delay = await controller.reconcile_observed(_kept(observed))
            except (Conflict, Retryable, OSError) as error:
                log.info("%s/%s: %s: %s; retrying", namespace, name, type(error).__name__, error)
                delay = RETRY_SECONDS
            await _wait_for_change(changed, delay)
        return await cluster.get("TrainingJob", namespace, name)


def _kept(observed: Observed) -> Observed:
    """Without ttlSecondsAfterFinished: the job goes with its work directory, and `cox run` has yet to read how it ended."""
    spec = {name: value for name, value in observed.job["spec"].items() if name != "ttlSecondsAfterFinished"}
    return replace(observed, job={**observed.job, "spec": spec})


async def _wait_for_change(changed: asyncio.Event, delay: float) -> None:
    """Waits for a change, at most `delay` seconds, then coalesces changes into one pass."""
    with suppress(TimeoutError):
        async with asyncio.timeout(delay):
            await changed.wait()
    await asyncio.sleep(min(delay, COALESCE_SECONDS))
    changed.clear()


@asynccontextmanager
async def _watch_changes(cluster: Cluster, namespace: str, leave: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """An event that every change of a watched object sets, and `leave`."""
    changed = asyncio.Event()

    async def listen_to_leave() -> None:
        await leave.wait()
        changed.set()

    async def listen(kind: str) -> None:
        async for _ in cluster.watch(kind, namespace):
            changed.set()

    tasks = [asyncio.create_task(listen(kind), name=f"watch {kind}") for kind in WATCHED]
    tasks.append(asyncio.create_task(listen_to_leave()))
    try:
        yield changed
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
