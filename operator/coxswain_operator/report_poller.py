"""Long-polls each job's coordinator: one waiting request a job; no pass waits for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from coxswain.wire import JobReport, SizeReply
from coxswain_operator.jobcontrol import HttpJobControl
from coxswain_operator.views import Manifest

Key = tuple[str, str]  # namespace, name

WAIT_SECONDS = 15.0  # then a coordinator answers with its progress although nothing else has changed
LEAST_SECONDS = 0.25  # between two requests to one that always has something new: each answer is a pass
ABSENT_SECONDS = 2.0  # between the first two tries to reach one that does not answer; doubles up to
LONGEST_ABSENCE = 10.0  # so that many jobs without an answer leave the operator's CPU to the others
FORGOTTEN_SECONDS = 180.0  # a job whose report no pass has read for that long is over


@dataclass(slots=True)
class _Polled:
    asked: float  # when a pass last read the report
    coordinator_uid: str  # of the polled pod
    latest: JobReport | None = None  # the last report of this pod
    task: asyncio.Task[None] | None = None


class ReportPoller:
    """A JobControl that returns stored reports. Every answer of a coordinator calls `on_change`."""

    def __init__(
        self,
        control: HttpJobControl,
        on_change: Callable[[Key], None],
        wait: float = WAIT_SECONDS,
        absent: float = ABSENT_SECONDS,
    ) -> None:
        self._control, self._on_change, self._wait, self._absent = control, on_change, wait, absent
        self._polled: dict[str, _Polled] = {}  # by the job's uid

    async def report(self, job: Manifest) -> JobReport | None:
        """The latest report of the present coordinator pod, never of its predecessor. Starts polling it once it is ready."""
        uid, coordinator_uid = job["metadata"]["uid"], await self._coordinator_uid(job)
        polled = self._polled.get(uid)
        if polled is None and not coordinator_uid:  # there is none to ask, and the job may not name its token yet
            return None
        if polled is None or (coordinator_uid and polled.coordinator_uid != coordinator_uid):
            polled = self._start_polling(job, coordinator_uid)
        elif polled.task is not None and polled.task.done():  # by an unexpected error, which asyncio logs
            polled.task = self._start_task(job, polled)
        polled.asked = _now()
        return polled.latest if polled.coordinator_uid == coordinator_uid else None

    def _start_polling(self, job: Manifest, coordinator_uid: str) -> _Polled:
        """Cancels the poll of an earlier pod: it may be gone without closing its connection."""
        uid = job["metadata"]["uid"]
        if uid in self._polled:
            _cancel(self._polled[uid])
        polled = self._polled[uid] = _Polled(_now(), coordinator_uid)
        polled.task = self._start_task(job, polled)
        return polled

    def _start_task(self, job: Manifest, polled: _Polled) -> asyncio.Task[None]:
        return asyncio.create_task(self._poll(job, polled), name=f"reports of {job['metadata']['uid']}")

    async def resize(self, job: Manifest, trainers: int) -> SizeReply | None:
        return await self._control.resize(job, trainers)

    async def checkpoint_and_stop(self, job: Manifest, reason: str, at_step: int = -1) -> bool:
        return await self._control.checkpoint_and_stop(job, reason, at_step)

    async def close(self) -> None:
        tasks = [_cancel(polled) for polled in self._polled.values()]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._control.close()

    async def _poll(self, job: Manifest, polled: _Polled) -> None:
        meta, pause = job["metadata"], self._absent
        while _now() - polled.asked < FORGOTTEN_SECONDS:
            before, asked = polled.latest, _now()
            mark = before.revision() if before else ""
            polled.latest = await self._control.report(job, mark, self._wait)
            if (polled.latest or before) is not None:
                self._on_change((meta["namespace"], meta["name"]))
            early = _now() - asked < self._wait / 2
            if polled.latest is None or (early and polled.latest.revision() == mark):  # it answers, but does not wait
                await asyncio.sleep(pause)
            await asyncio.sleep(asked + LEAST_SECONDS - _now())
            pause = self._absent if polled.latest else min(2 * pause, LONGEST_ABSENCE)
        del self._polled[meta["uid"]]
        await self._control.forget(job)

    async def _coordinator_uid(self, job: Manifest) -> str:
        """The uid of the coordinator's pod; empty while none is ready."""
        coordinator_uid = await self._control.coordinator_pod(job)
        return coordinator_uid.uid if coordinator_uid else ""


def _now() -> float:
    return asyncio.get_running_loop().time()


def _cancel(polled: _Polled) -> asyncio.Task[None]:
    assert polled.task is not None
    polled.task.cancel()
    return polled.task
