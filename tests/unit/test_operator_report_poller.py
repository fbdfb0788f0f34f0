"""Long polls of coordinators in virtual time: whose report a pass gets, and how often a coordinator is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import cast

import pytest

from coxswain.wire import JobReport
from coxswain_operator.jobcontrol import HttpJobControl
from coxswain_operator.report_poller import LONGEST_ABSENCE, ReportPoller
from coxswain_operator.views import Manifest, PodView
from tests.unit.fake_cluster import report
from tests.unit.reconcile_scenes import COORDINATOR

pytestmark = pytest.mark.looptime(start=1000)

JOB: Manifest = {"metadata": {"namespace": "lab", "name": "demo", "uid": "u"}}
KEY = ("lab", "demo")
FIRST, SECOND = report("Running", 1), report("Completed", 2)


class Control:
    """A coordinator that answers a long poll when its report has another revision, or at the end of the wait."""

    def __init__(self) -> None:
        self.seconds = 0.1  # that each answer takes
        self.pod: PodView | None = COORDINATOR
        self.answer: JobReport | None = FIRST
        self.waits = True
        self.error: Exception | None = None
        self.asked: list[tuple[float, str]] = []  # when, and after which revision
        self.forgotten = self.closed = self.under_way = 0

    async def coordinator_pod(self, job: Manifest) -> PodView | None:
        return self.pod

    async def report(self, job: Manifest, after: str, wait: float) -> JobReport | None:
        self.asked.append((asyncio.get_running_loop().time() - 1000, after))
        end = asyncio.get_running_loop().time() + wait
        self.under_way += 1
        try:
            await asyncio.sleep(self.seconds)
            while self._nothing_new(after) and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            if self.error:
                raise self.error
            return self.answer
        finally:
            self.under_way -= 1

    def _nothing_new(self, after: str) -> bool:
        return self.waits and self.answer is not None and self.answer.revision() == after

    async def checkpoint_and_stop(self, job: Manifest, reason: str, at_step: int = -1) -> bool:
        return (reason, at_step) in (("suspended", 7), ("suspended", -1))

    async def forget(self, job: Manifest) -> None:
        self.forgotten += 1

    async def close(self) -> None:
        self.closed += 1


class Scene:
    """A poller of one job, and the jobs that it added to the queue."""

    def __init__(self, control: Control) -> None:
        self.control, self.added = control, list[tuple[str, str]]()
        self.poller = ReportPoller(cast("HttpJobControl", control), self.added.append)

    async def after(self, seconds: float) -> JobReport | None:
        """What a pass gets then."""
        await asyncio.sleep(seconds)
        return await self.poller.report(JOB)


@asynccontextmanager
async def polling(answer: JobReport | None = FIRST, waits: bool = True) -> AsyncIterator[Scene]:
    control = Control()
    control.answer, control.waits = answer, waits
    scene = Scene(control)
    assert await scene.poller.report(JOB) is None  # a pass never waits for a coordinator
    try:
        yield scene
    finally:
        await scene.poller.close()
        assert (control.under_way, control.closed) == (0, 1)


async def test_a_report_is_there_at_the_next_pass_and_each_change_adds_the_job() -> None:
    async with polling() as scene:
        assert await scene.after(1.0) == FIRST
        assert scene.added == [KEY]
        scene.control.answer = SECOND
        assert await scene.after(1.0) == SECOND
        assert scene.added == [KEY, KEY]


async def test_a_coordinator_is_asked_from_when_its_pod_is_ready_on() -> None:
    control = Control()
    control.pod = None
    scene = Scene(control)
    assert await scene.after(0.0) is None
    assert await scene.after(5.0) is None and control.asked == []
    control.pod = COORDINATOR
    assert await scene.after(1.0) is None
    assert await scene.after(1.0) == FIRST
    await scene.poller.close()


async def test_a_long_poll_names_the_revision_it_knows_and_a_new_one_follows_its_end_at_once() -> None:
    async with polling() as scene:
        await asyncio.sleep(40.0)
        begun, after = zip(*scene.control.asked, strict=True)
        assert begun == pytest.approx((0.0, 0.1, 15.1, 30.1), abs=0.5)
        assert after == ("", *[FIRST.revision()] * 3)


async def test_a_coordinator_that_does_not_wait_is_asked_every_two_seconds() -> None:
    async with polling(FIRST, waits=False) as scene:
        await asyncio.sleep(21.0)
        assert len(scene.control.asked) == pytest.approx(10, abs=1)
        assert scene.added


class Restless(Control):
    """Has another revision whenever it is asked."""

    async def report(self, job: Manifest, after: str, wait: float) -> JobReport | None:
        self.answer = report("Running", 1, generation=len(self.asked))
        return await super().report(job, after, wait)


async def test_a_coordinator_that_always_has_something_new_is_asked_four_times_a_second() -> None:
    """Its image may be the user's own, and one process asks the coordinators of all jobs."""
    scene = Scene(Restless())
    scene.control.seconds = 0.01
    await scene.after(0.0)
    await asyncio.sleep(10.0)
    assert len(scene.control.asked) == pytest.approx(40, abs=2)
    await scene.poller.close()


async def test_a_coordinator_that_is_silent_is_asked_ever_more_rarely_down_to_every_ten_seconds() -> None:
    async with polling(None) as scene:
        await asyncio.sleep(40.0)
        assert [when for when, _ in scene.control.asked] == pytest.approx([0, 2, 6, 14, 24, 34], abs=0.6)
        assert not scene.added


async def test_a_coordinator_that_falls_silent_again_is_asked_often_at_first() -> None:
    async with polling(None) as scene:
        await asyncio.sleep(20.0)
        scene.control.answer = FIRST
        await asyncio.sleep(10.0)
        scene.control.answer = None
        await asyncio.sleep(20.0)
        known = max(i for i, (_, mark) in enumerate(scene.control.asked) if mark)
        gaps = [b[0] - a[0] for a, b in pairwise(scene.control.asked[known + 1 :])]
        assert gaps == pytest.approx([4.0, 8.0], abs=0.2)  # the first pause, of two seconds, is before these


async def test_a_coordinator_that_falls_silent_adds_its_job_once() -> None:
    async with polling() as scene:
        await scene.after(1.0)
        scene.control.answer = None
        assert await scene.after(60.0) is None
        assert scene.added == [KEY, KEY]


async def test_a_successor_gets_neither_the_report_nor_the_poll_of_its_predecessor() -> None:
    async with polling() as scene:
        assert await scene.after(1.0) == FIRST
        scene.control.pod = replace(COORDINATOR, uid="another")
        assert await scene.after(0.0) is None
        await asyncio.sleep(0.05)
        assert scene.control.under_way == 1  # the predecessor's is cancelled
        assert scene.control.asked[-1][1] == ""
        assert await scene.after(1.0) == FIRST


async def test_an_unexpected_error_ends_one_poll_and_the_next_pass_begins_another() -> None:
    async with polling() as scene:
        await scene.after(1.0)
        scene.control.error = ValueError("the Secret's token is not base64")
        await asyncio.sleep(20.0)
        scene.control.error = None
        assert await scene.after(0.0) == FIRST
        scene.control.answer = SECOND
        assert await scene.after(1.0) == SECOND


async def test_a_pod_that_is_not_ready_for_a_while_has_no_report_and_keeps_its_poll() -> None:
    async with polling() as scene:
        await scene.after(1.0)
        asked, scene.control.pod = len(scene.control.asked), None
        assert await scene.after(0.0) is None
        scene.control.pod = COORDINATOR
        assert await scene.after(0.0) == FIRST
        assert len(scene.control.asked) == asked


@pytest.mark.parametrize(("seconds", "begun"), [(7.0, [0.0, 7.0, 16.0]), (7.5, [0.0, 7.5, 15.0])])
async def test_a_coordinator_waits_that_answers_after_half_of_the_time(seconds: float, begun: list[float]) -> None:
    async with polling(waits=False) as scene:
        scene.control.seconds = seconds
        await asyncio.sleep(20.0)
        assert [when for when, _ in scene.control.asked] == pytest.approx(begun)


async def test_a_job_is_forgotten_when_it_would_be_asked_next_after_three_minutes() -> None:
    control = Control()
    control.answer, control.seconds = None, 0.0
    poller = ReportPoller(cast("HttpJobControl", control), lambda key: None, absent=1.0)
    await poller.report(JOB)
    await asyncio.sleep(179.5)
    assert control.forgotten == 0
    await asyncio.sleep(LONGEST_ABSENCE)
    assert control.forgotten == 1
    await poller.close()


@pytest.mark.parametrize(("silence", "forgotten"), [(160.0, 0), (200.0, 1)])
async def test_a_job_whose_report_no_pass_reads_is_forgotten_after_three_minutes(
    silence: float, forgotten: int
) -> None:
    async with polling() as scene:
        await scene.after(100.0)
        await asyncio.sleep(silence)
        assert (scene.control.forgotten, scene.control.under_way) == (forgotten, 1 - forgotten)
        assert await scene.after(0.0) == (None if forgotten else FIRST)
        assert await scene.after(1.0) == FIRST


async def test_a_request_to_stop_goes_to_the_coordinator_with_its_step() -> None:
    async with polling() as scene:
        assert await scene.poller.checkpoint_and_stop(JOB, "suspended", 7)
        assert await scene.poller.checkpoint_and_stop(JOB, "suspended")
        assert not await scene.poller.checkpoint_and_stop(JOB, "suspended", 8)
