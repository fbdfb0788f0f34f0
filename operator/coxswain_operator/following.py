"""Coordinators tell the operator when something has changed: one waiting request a job, and no turn that waits for an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from coxswain.wire import JobReport
from coxswain_operator.cluster import Manifest
from coxswain_operator.jobcontrol import HttpJobControl

Key = tuple[str, str]  # namespace, name

WAIT_SECONDS = 15.0  # after which a coordinator tells its progress even if nothing else has changed
ABSENT_SECONDS = 2.0  # between two tries to reach one that does not answer
FORGOTTEN_SECONDS = 180.0  # a job whose report nobody has asked for that long is over


@dataclass(slots=True)
class _Followed:
    task: asyncio.Task[None]
    asked: float
    latest: JobReport | None = None


class Following:
    """A JobControl whose reports are there already. Every answer of a coordinator rings for its job."""

    def __init__(self, control: HttpJobControl, ring: Callable[[Key], None], wait: float = WAIT_SECONDS) -> None:
        self._control, self._ring, self._wait = control, ring, wait
        self._followed: dict[str, _Followed] = {}  # by the job's uid

    async def report(self, job: Manifest) -> JobReport | None:
        """The latest one; begins to follow the job's coordinator."""
        uid, now = job["metadata"]["uid"], time.monotonic()
        if uid not in self._followed:
            self._followed[uid] = _Followed(asyncio.create_task(self._follow(job), name=f"reports of {uid}"), now)
        self._followed[uid].asked = now
        return self._followed[uid].latest

    async def checkpoint_and_stop(self, job: Manifest, reason: str, at_step: int = -1) -> bool:
        return await self._control.checkpoint_and_stop(job, reason, at_step)

    async def close(self) -> None:
        tasks = [followed.task for followed in self._followed.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._control.close()

    async def _follow(self, job: Manifest) -> None:
        meta = job["metadata"]
        followed = self._followed[meta["uid"]]
        while time.monotonic() - followed.asked < FORGOTTEN_SECONDS:
            before, asked = followed.latest, time.monotonic()
            mark = before.mark() if before else ""
            followed.latest = await self._control.report(job, mark, self._wait)
            if (followed.latest or before) is not None:
                self._ring((meta["namespace"], meta["name"]))
            early = time.monotonic() - asked < self._wait / 2
            if followed.latest is None or (early and followed.latest.mark() == mark):  # there, but it does not wait
                await asyncio.sleep(ABSENT_SECONDS)
        del self._followed[meta["uid"]]
        await self._control.forget(job)
