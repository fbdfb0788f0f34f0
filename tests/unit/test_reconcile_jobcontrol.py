"""The operator's words with a coordinator, over HTTP on this machine."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from coxswain.errors import Retryable
from coxswain.names import LABEL_INCARNATION, LABEL_INDEX, LABEL_ROLE
from coxswain.wire import StopRequest
from coxswain_operator.children.common import owner_of
from coxswain_operator.jobcontrol import DEADLINE_SECONDS, HttpJobControl
from coxswain_operator.report_poller import ReportPoller
from tests.fake_coordinator import FakeCoordinator
from tests.unit.coordinator_fakes import TOKEN, cluster, make_job
from tests.unit.fake_cluster import NAMESPACE, FakeCluster, report, training_job


@asynccontextmanager
async def knowing(port: int, token: str, ready: str = "True") -> AsyncIterator[tuple[HttpJobControl, FakeCluster]]:
    """A control that finds the coordinator at this port in a cluster's objects, and the cluster."""
    world = FakeCluster(training_job())
    ours = owner_of(world.job)
    whole = {LABEL_ROLE: "coordinator", LABEL_INDEX: "0", LABEL_INCARNATION: "0"}
    for kind, name, more in (("Pod", "c", whole), ("Secret", "demo-token", {})):
        head = {**ours, "name": name, "labels": ours["labels"] | more}
        world.put({"kind": kind, "metadata": head, "spec": {}})
    world.objects["Pod", "c"]["status"] = {
        "phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": ready}],
    }  # fmt: skip
    world.objects["Secret", "demo-token"]["data"] = {"token": base64.b64encode(token.encode()).decode()}
    control = HttpJobControl(world, port)
    try:
        yield control, world
    finally:
        await control.close()


@asynccontextmanager
async def talking(
    token: str = "right", ready: str = "True"
) -> AsyncIterator[tuple[HttpJobControl, FakeCoordinator, FakeCluster]]:
    """A coordinator that listens, and a control that knows it."""
    with FakeCoordinator("right", report("Running", 42)) as coordinator:
        async with knowing(coordinator.port, token, ready) as (control, world):
            yield control, coordinator, world


async def test_a_report_comes_from_the_coordinators_address_with_the_jobs_token() -> None:
    async with talking() as (control, _, world):
        answer = await control.report(world.job)
        assert answer is not None and answer.step == 42


async def test_a_stop_names_its_reason_and_its_step() -> None:
    async with talking() as (control, coordinator, world):
        assert await control.checkpoint_and_stop(world.job, "suspended", 7)
        assert coordinator.stops == [StopRequest("suspended", 7)]


async def test_a_wrong_token_is_no_answer() -> None:
    async with talking(token="wrong") as (control, coordinator, world):
        assert await control.report(world.job) is None
        assert not await control.checkpoint_and_stop(world.job, "suspended")
        assert coordinator.stops == []


async def test_a_coordinator_with_an_ipv6_address_that_does_not_answer_is_no_error() -> None:
    async with talking() as (control, _, world):
        world.objects["Pod", "c"]["status"]["podIP"] = "fd00::1:7"
        assert await control.report(world.job) is None
        assert not await control.checkpoint_and_stop(world.job, "suspended")


async def test_a_coordinator_that_is_not_ready_is_not_asked() -> None:
    async with talking(ready="False") as (control, _, world):
        assert await control.report(world.job) is None


async def test_a_coordinator_that_is_gone_is_asked_once_and_delays_no_pass() -> None:
    async with knowing(1, "right") as (control, world):  # nothing listens at this port
        begun = time.monotonic()
        assert await control.report(world.job) is None
        assert not await control.checkpoint_and_stop(world.job, "suspended")
    assert time.monotonic() - begun < DEADLINE_SECONDS, "one call alone would wait for that long"


async def test_reports_are_polled_and_every_change_adds_the_job() -> None:
    async with talking() as (control, coordinator, world):
        rings: list[tuple[str, str]] = []
        following = ReportPoller(control, rings.append, wait=0.2)
        try:
            assert await following.report(world.job) is None  # a turn never waits for a coordinator
            await until(lambda: len(rings) >= 1)
            first = await following.report(world.job)
            assert first is not None and first.phase == "Running"
            coordinator.job_report = report("Failed", 43)
            async with asyncio.timeout(10):
                while (latest := await following.report(world.job)) is None or latest.phase != "Failed":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert len(rings) >= 2 and set(rings) == {(NAMESPACE, "demo")}
        finally:
            await following.close()


async def test_a_whole_job_is_followed_by_a_call_that_waits_at_the_coordinator_for_another_phase(
    tmp_path: Path,
) -> None:
    async with cluster(make_job(tmp_path), tmp_path) as real, knowing(real.port, TOKEN) as (control, world):
        rings: list[tuple[str, str]] = []
        following = ReportPoller(control, rings.append)
        try:
            assert await following.report(world.job) is None
            await until(lambda: len(rings) >= 1)
            end = await real.play()
            async with asyncio.timeout(10):
                while (latest := await following.report(world.job)) is None or latest.phase != "Completed":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert (latest.revision(), latest.step) == (end.revision(), end.step)
            assert 2 <= len(rings) < len(real.steps())  # steps alone end no long poll
        finally:
            await following.close()


async def test_the_report_of_a_replaced_coordinator_is_not_its_successors() -> None:
    async with talking() as (control, _, world):
        following = ReportPoller(control, lambda key: None, wait=30.0)
        try:
            async with asyncio.timeout(10):
                while await following.report(world.job) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            world.objects["Pod", "c"]["metadata"]["uid"] = "another"
            assert await following.report(world.job) is None
        finally:
            await following.close()


async def test_an_api_server_that_does_not_give_the_token_for_a_while_ends_no_following() -> None:
    async with talking() as (control, _, world):
        away = True

        def fails(verb: str, what: str) -> None:
            if away and what == "Secret":
                raise Retryable("503")

        world.before_call = fails
        following = ReportPoller(control, lambda key: None, absent=0.01)
        try:
            assert await following.report(world.job) is None
            assert not await following.checkpoint_and_stop(world.job, "suspended")
            away = False
            async with asyncio.timeout(10):
                while await following.report(world.job) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            await following.close()


async def test_a_long_poll_names_the_mark_of_what_it_knows() -> None:
    async with talking() as (control, coordinator, world):
        known = await control.report(world.job)
        assert known is not None
        await control.report(world.job, known.revision(), 1.0)
        assert coordinator.received["/v1/report"][-1] == {"after": known.revision(), "wait": "1.0"}


def test_progress_leaves_the_mark_and_a_change_of_phase_does_not() -> None:
    assert report("Running", 1).revision() == report("Running", 2).revision() != report("Completed", 2).revision()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
