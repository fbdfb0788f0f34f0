"""An ended job starts again where an annotation asks for it: fresh counters, the same history."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from coxswain.errors import Refused
from coxswain.names import ANNOTATION_RETRY, ENV_RECORDED_STEP
from coxswain.wire import Fault, JobEvent
from coxswain_operator.controller import Controller
from coxswain_operator.reconcile.actions import Delete, WriteStatus
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.single_job import run_job
from coxswain_operator.views import Event
from tests.unit.fake_cluster import NAMESPACE, FakeCluster, report, report_text, with_job
from tests.unit.reconcile_scenes import GANG, NOW, Scene, condition
from tests.unit.test_reconcile_lifecycle import begin, passes, running

FAULT = Fault("SourceNotFound", "the uri does not exist")


def ask(world: FakeCluster, value: str) -> None:
    world.job["metadata"].setdefault("annotations", {})[ANNOTATION_RETRY] = value
    world.job["metadata"]["resourceVersion"] = str(next(world.versions))


async def failed(**spec: object) -> FakeCluster:
    """A job that a user's fault ended at step 10, after a restart that counts."""
    world = await running(**spec)
    world.end(world.pod("trainer-0"), 1)
    await passes(world)
    world.end(world.pod("coordinator"), 2, report_text("Failed", fault=FAULT))
    world.report_now = None
    await passes(world)
    assert (world.state, world.job["status"]["restarts"]["counted"]) == ("Failed", 1)
    return world


async def test_a_failed_job_stays_so_without_the_annotation() -> None:
    world = await failed()
    created = len(world.created)
    await passes(world)
    assert (world.state, len(world.created)) == ("Failed", created)


async def test_a_retried_job_runs_again_with_fresh_counters_and_the_same_history() -> None:
    world = await failed()
    ask(world, "1")
    await begin(world)
    status = world.job["status"]
    assert (world.state, status["restarts"]["counted"], status["attempt"]) == ("Running", 0, 1)
    assert "completionTime" not in status
    assert [(a["number"], a.get("cause", "").split(":")[0], a.get("resumedStep")) for a in status["attempts"]] == [
        (0, "SourceNotFound", None),
        (1, "", 10),
    ]
    assert [e.message for e in world.events if e.reason == "Resumed"] == ["retried after Failed"]


@pytest.mark.timeout(10)
async def test_an_ended_job_without_pods_that_is_retried_is_run_and_not_returned_as_it_is() -> None:
    world, leave = await failed(), asyncio.Event()
    for pod in world.pods():
        world.vanish(pod)
    controller = Controller(world, world, world.clock)
    job = await run_job(controller, world, NAMESPACE, "demo", leave)
    assert job is not None and (world.state, job["status"]["attempt"]) == ("Failed", 0)
    ask(world, "1")
    world.before_call = lambda verb, what: leave.set() if verb == "patch" else None
    job = await run_job(controller, world, NAMESPACE, "demo", leave)
    assert job is not None and (world.state, job["status"]["attempt"]) == ("Starting", 1)


async def test_one_value_of_the_annotation_retries_once_and_another_one_again() -> None:
    world = await failed()
    for value, attempt in (("a", 1), ("a", 1), ("b", 2)):
        ask(world, value)
        await passes(world)
        if world.state != "Failed":
            world.end(world.pod("coordinator"), 2, report_text("Failed", fault=FAULT))
            await passes(world)
        assert (world.state, world.job["status"]["attempt"]) == ("Failed", attempt)


@pytest.mark.parametrize(("code", "state"), [(0, "Completed"), (2, "Failed")])
async def test_an_annotation_that_the_job_was_created_with_does_not_retry_it_and_another_value_does(
    code: int, state: str
) -> None:
    """As of a manifest that stands in Git since an earlier job, or was copied from one."""
    world = with_job()
    ask(world, "1")
    await begin(world)
    world.end(world.pod("coordinator"), code, report_text(state, step=100, fault=FAULT if code else None))
    world.report_now = None
    await passes(world, 8)
    assert (world.state, world.job["status"]["attempt"]) == (state, 0)
    ask(world, "2")
    await passes(world)
    assert world.job["status"]["attempt"] == 1


async def test_an_annotation_that_comes_while_the_job_runs_retries_it_once_it_has_ended() -> None:
    world = await running()
    ask(world, "1")
    await passes(world)
    assert (world.state, world.job["status"]["attempt"]) == ("Running", 0)
    world.end(world.pod("coordinator"), 2, report_text("Failed", step=10, fault=FAULT))
    world.report_now = None
    await passes(world, 8)
    assert world.job["status"]["attempt"] == 1


async def test_a_long_value_of_the_annotation_retries_once() -> None:
    """The status holds 1,024 characters of it."""
    world = await failed()
    ask(world, "x" * 3000)
    await passes(world, 8)
    assert world.job["status"]["attempt"] == 1


async def test_an_ended_job_that_a_finalizer_keeps_is_not_retried() -> None:
    world = await failed()
    world.job["metadata"]["deletionTimestamp"] = stamp(world.now)
    ask(world, "1")
    await passes(world)
    assert (world.state, world.job["status"]["attempt"]) == ("Failed", 0)


async def test_a_completed_job_is_retried_too_and_its_pods_of_before_are_replaced() -> None:
    world = await running()
    world.end(world.pod("coordinator"), 0, report_text("Completed", step=100, checkpoint_step=100))
    await passes(world)
    assert world.state == "Completed"
    before = {p["metadata"]["name"] for p in world.pods()}
    ask(world, "1")
    await passes(world)
    assert world.state != "Completed"
    assert not before & {p["metadata"]["name"] for p in world.pods()}


async def test_a_retry_grants_the_active_deadline_again() -> None:
    world = await running(activeDeadlineSeconds=100)
    world.tick(200)
    await passes(world)
    assert (world.state, "raise it and retry" in world.condition("Succeeded")["message"]) == ("Failed", True)
    ask(world, "1")
    await begin(world)
    assert world.state == "Running"
    world.tick(200)
    await passes(world)
    assert world.state == "Failed"


async def test_a_child_that_the_cluster_refused_is_tried_again() -> None:
    world = with_job()
    controller = Controller(world, world, world.clock)
    refusing = True

    def refuse(verb: str, what: str) -> None:
        if refusing and verb == "create" and what.startswith("demo-coordinator"):
            raise Refused("Invalid", "no such class")

    world.before_call = refuse
    for _ in range(3):
        await controller.pass_once(NAMESPACE, "demo")
    assert world.state == "Failed"
    refusing = False
    ask(world, "1")
    for _ in range(3):
        await controller.pass_once(NAMESPACE, "demo")
        world.reap()
    assert "demo-coordinator-0" in world.created
    assert world.state == "Starting"


@pytest.mark.parametrize(("step", "found"), [(10, "10"), (-1, None)])
async def test_a_coordinator_knows_the_step_of_the_last_checkpoint_that_the_status_names(step, found) -> None:
    world = with_job()
    await passes(world)
    world.run_all()
    world.report_now = report("Running", 10, checkpoint_step=step)
    await passes(world)
    world.end(world.pod("coordinator"), 1)
    await passes(world)
    env = {e["name"]: e.get("value") for e in world.pod("coordinator")["spec"]["containers"][0]["env"]}
    assert env.get(ENV_RECORDED_STEP) == found


def test_a_retry_of_a_job_whose_pods_still_run_takes_nothing_over_from_them_but_progress() -> None:
    """The job has completed just now: its coordinator still answers, and all pods are ready."""
    status = {
        "conditions": [condition("Succeeded", "True", reason="Completed"), condition("PodsReady", "True")],
        "completionTime": stamp(NOW - 1), "activeSeconds": 500, "activeSince": stamp(1000.0), "eventSequence": 3,
        "restarts": {"counted": 2, "ignored": 3}, "gang": {"releases": 4, "until": stamp(NOW + 300)},
        "lastCheckpoint": {"step": 10, "uri": "file:///runs/demo", "time": stamp(1500.0)},
    }  # fmt: skip
    saved = (JobEvent(4, 1.0, "CheckpointSaved", "of the ended attempt"),)
    leaving = replace(GANG[1], name="demo-loader-0-9", uid="g", incarnation=9, deleting=True)
    scene = Scene(
        (*GANG, leaving), report("Running", 20, events=saved), "coordinator,loader:0,trainer:0-1", status=status,
        annotations={ANNOTATION_RETRY: "1"},
    )  # fmt: skip
    decision = scene.decide()
    (write,) = (a for a in decision.actions if isinstance(a, WriteStatus))
    begun = write.status
    assert not begun.keys() & {"gang", "activeSince", "startTime", "completionTime", "eventSequence"}
    assert (begun["activeSeconds"], begun["restarts"]) == (0, {"counted": 0, "ignored": 0})
    assert (begun["trainers"]["ready"], begun["trainers"]["desired"], begun["replicas"]) == (0, 0, 0)
    assert begun["lastCheckpoint"]["step"] == 10
    assert next(c["status"] for c in begun["conditions"] if c["type"] == "PodsReady") == "False"
    assert "CheckpointSaved" not in [e.reason for e in decision.of(Event) if isinstance(e, Event)]
    assert {d.name for d in decision.of(Delete) if isinstance(d, Delete)} == {p.name for p in GANG}
