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
    asked: float  # when somebody last wanted to know
    speaker: str  # uid of the pod that is asked
    latest: JobReport | None = None  # what this pod said last
    task: asyncio.Task[None] | None = None


class Following:
    """A JobControl whose reports are there already. Every answer of a coordinator rings for its job."""

    def __init__(
        self,
        control: HttpJobControl,
        ring: Callable[[Key], None],
        wait: float = WAIT_SECONDS,
        absent: float = ABSENT_SECONDS,
    ) -> None:
        self._control, self._ring, self._wait, self._absent = control, ring, wait, absent
        self._followed: dict[str, _Followed] = {}  # by the job's uid

    async def report(self, job: Manifest) -> JobReport | None:
        """The latest one of the coordinator that is there now: its predecessor's word says nothing of it. Begins to follow it."""
        uid, now, speaker = job["metadata"]["uid"], time.monotonic(), await self._speaker(job)
        followed = self._followed.get(uid)
        if followed is None or (speaker and followed.speaker != speaker):
            followed = self._begin(job, speaker)
        followed.asked = now
        return followed.latest if followed.speaker == speaker else None

    def _begin(self, job: Manifest, speaker: str) -> _Followed:
        """Another pod is not waited for any more: it may be gone without having closed its connection."""
        uid = job["metadata"]["uid"]
        if uid in self._followed:
            _cancel(self._followed[uid])
        followed = self._followed[uid] = _Followed(time.monotonic(), speaker)
        followed.task = asyncio.create_task(self._follow(job, followed), name=f"reports of {uid}")
        return followed

    async def checkpoint_and_stop(self, job: Manifest, reason: str, at_step: int = -1) -> bool:
        return await self._control.checkpoint_and_stop(job, reason, at_step)

    async def close(self) -> None:
        tasks = [_cancel(followed) for followed in self._followed.values()]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._control.close()

    async def _follow(self, job: Manifest, followed: _Followed) -> None:
        meta = job["metadata"]
        while time.monotonic() - followed.asked < FORGOTTEN_SECONDS:
            before, asked = followed.latest, time.monotonic()
            mark = before.mark() if before else ""
            followed.latest = await self._control.report(job, mark, self._wait)
            if (followed.latest or before) is not None:
                self._ring((meta["namespace"], meta["name"]))
            early = time.monotonic() - asked < self._wait / 2
            if followed.latest is None or (early and followed.latest.mark() == mark):  # there, but it does not wait
                await asyncio.sleep(self._absent)
        del self._followed[meta["uid"]]
        await self._control.forget(job)

    async def _speaker(self, job: Manifest) -> str:
        """The uid of the coordinator's pod; empty while none is ready."""
        speaker = await self._control.speaker(job)
        return speaker.uid if speaker else ""


def _cancel(followed: _Followed) -> asyncio.Task[None]:
    assert followed.task is not None
    followed.task.cancel()
    return followed.task
