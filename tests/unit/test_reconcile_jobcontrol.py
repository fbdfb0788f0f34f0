"""The operator's words with a coordinator, over HTTP on this machine."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from coxswain.names import LABEL_INCARNATION, LABEL_INDEX, LABEL_JOB_UID, LABEL_ROLE
from coxswain.wire import JobReport, StopRequest
from coxswain_link.metrics import build
from coxswain_link.serve import Service
from coxswain_operator.cluster import Manifest
from coxswain_operator.jobcontrol import DEADLINE_SECONDS, HttpJobControl
from tests.unit.reconcile_world import NAMESPACE, World, report, training_job


class Coordinator:
    """Answers the operator's two calls."""

    def __init__(self) -> None:
        self.stops: list[StopRequest] = []

    async def report(self, _: web.Request, __: None) -> JobReport:
        return report("Running", 42)

    async def stop(self, _: web.Request, body: StopRequest) -> None:
        self.stops.append(body)


@asynccontextmanager
async def talking(
    token: str = "right", ready: str = "True"
) -> AsyncIterator[tuple[HttpJobControl, Coordinator, Manifest]]:
    """A coordinator that listens, and a control that knows it from the cluster's objects."""
    coordinator, service = Coordinator(), Service("right", lambda: 0, build("coordinator"))
    service.route("GET", "/v1/report", coordinator.report)
    service.route("POST", "/v1/stop", coordinator.stop, StopRequest)
    port = await service.start("127.0.0.1", 0)
    world = World(training_job())
    labels = {LABEL_JOB_UID: world.job["metadata"]["uid"]}
    whole = {LABEL_ROLE: "coordinator", LABEL_INDEX: "0", LABEL_INCARNATION: "0"}
    for kind, name, more in (("Pod", "c", whole), ("Secret", "demo-token", {})):
        head = {"name": name, "namespace": NAMESPACE, "labels": labels | more}
        world.put({"kind": kind, "metadata": head, "spec": {}})
    world.objects["Pod", "c"]["status"] = {
        "phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": ready}],
    }  # fmt: skip
    world.objects["Secret", "demo-token"]["data"] = {"token": base64.b64encode(token.encode()).decode()}
    control = HttpJobControl(world, port)
    try:
        yield control, coordinator, world.job
    finally:
        await control.close()
        await service.stop()


async def test_a_report_comes_from_the_coordinators_address_with_the_jobs_token() -> None:
    async with talking() as (control, _, job):
        answer = await control.report(job)
        assert answer is not None and answer.step == 42


async def test_a_stop_names_its_reason_and_its_step() -> None:
    async with talking() as (control, coordinator, job):
        assert await control.checkpoint_and_stop(job, "suspended", 7)
        assert coordinator.stops == [StopRequest("suspended", 7)]


async def test_a_wrong_token_is_no_answer() -> None:
    async with talking(token="wrong") as (control, coordinator, job):
        assert await control.report(job) is None
        assert not await control.checkpoint_and_stop(job, "suspended")
        assert coordinator.stops == []


async def test_a_coordinator_that_is_not_ready_is_not_asked() -> None:
    async with talking(ready="False") as (control, _, job):
        assert await control.report(job) is None


async def test_a_coordinator_that_is_gone_is_asked_once_and_holds_up_nobody() -> None:
    async with talking() as (control, _, job):
        control._port = 1  # nothing listens there
        begun = time.monotonic()
        assert await control.report(job) is None
        assert not await control.checkpoint_and_stop(job, "suspended")
    assert time.monotonic() - begun < DEADLINE_SECONDS / 2
