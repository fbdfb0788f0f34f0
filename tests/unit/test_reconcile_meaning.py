"""Conditions mean what they say: what a user changed is no failure, and what goes on is not reported as ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coxswain_operator.reconcile.context import build_context
from coxswain_operator.reconcile.gang import PINNED
from coxswain_operator.settings import Settings
from coxswain_operator.views import ChildView, Manifest
from tests.unit.fake_cluster import (
    FakeCluster,
    data_mix,
    data_source,
    manifest,
    report,
    report_text,
    training_job,
    with_job,
)
from tests.unit.reconcile_scenes import COORDINATOR, GANG, LOADER, NOW, TRAINER, Scene, condition
from tests.unit.test_reconcile_lifecycle import begin, passes, running
from tests.unit.test_reconcile_resize import leave, running_scalable, scale

MISSING = "DataSource 'code' does not exist"


def shown(world: FakeCluster, type_: str) -> tuple[str, str, str]:
    found = world.condition(type_)
    return found["status"], found["reason"], found["message"]


async def without_source() -> FakeCluster:
    """A job that trains, and whose source is deleted."""
    world = await running()
    del world.objects["DataSource", "code"]
    await passes(world)
    return world


async def test_a_source_that_is_deleted_in_mid_run_is_named_and_training_goes_on() -> None:
    world = await without_source()
    status, reason, message = shown(world, "Progressing")
    assert (world.state, status, reason) == ("Running", "True", "Training")
    assert message.startswith(PINNED) and MISSING in message
    assert shown(world, "Validated")[:2] == ("False", "SourceNotFound") and MISSING in shown(world, "Validated")[2]


async def test_a_job_that_completes_without_its_source_stays_validated() -> None:
    world = await without_source()
    world.end(world.pod("coordinator") or {}, 0, report_text("Completed", step=100, reason="StopReached"))
    await passes(world)
    assert (world.state, shown(world, "Validated")[:2]) == ("Completed", ("True", "Resolved"))
    assert [event.reason for event in world.events].count("Validated") == 1


async def test_a_job_that_fails_without_its_source_says_so() -> None:
    world = await without_source()
    world.end(world.pod("trainer-0") or {}, 2)
    await passes(world)
    assert (world.state, shown(world, "Validated")[:2]) == ("Failed", ("False", "SourceNotFound"))


def policy(**spec: Any) -> Manifest:
    return manifest("ParallelismPolicy", "even", {"hybridData": {"tokensPerReplica": 1024, "maxDegree": 4}, **spec})


BAD_POLICIES = [
    ({"tensor": 0}, "ParallelismPolicy/even spec.tensor"),
    ({"hybridData": {"balance": "Zigzag"}}, "ParallelismPolicy/even spec.hybridData.balance"),
    ({"hybridData": {"tokensPerReplica": 16, "maxDegree": 1}}, "tokensPerReplica 16"),
]


@pytest.mark.parametrize(("spec", "field"), BAD_POLICIES)
async def test_an_invalid_policy_is_named_with_its_field_and_the_checkpoints_keep_their_interval(
    spec: Manifest, field: str
) -> None:
    job = training_job(parallelismRef={"name": "even"}, checkpoint={"uri": "file:///runs/demo", "everySteps": 10})
    del job["spec"]["parallelism"]
    world = FakeCluster(data_source(), data_mix(), policy(), job)
    await begin(world)
    world.edit("ParallelismPolicy", "even", **spec)
    world.report_now = report("Running", 31, checkpoint_step=10)
    await passes(world)
    assert field in shown(world, "Validated")[2] and shown(world, "Validated")[0] == "False"
    assert field in shown(world, "Progressing")[2] and field in shown(world, "Succeeded")[2]
    assert shown(world, "CheckpointFresh") == ("False", "Stale", "21 steps since the last checkpoint; everySteps is 10")


async def test_a_planned_scale_and_a_resumption_are_not_degraded() -> None:
    world, seen = await running_scalable(), set[tuple[str, str]]()

    async def watch(count: int = 6) -> None:
        for _ in range(count):
            await passes(world, 1)
            seen.add((world.state, shown(world, "Degraded")[0]))

    scale(world, 3)
    await watch()
    leave(world)
    await watch()
    world.run_all()
    world.report_now = report("Running", 30)
    await watch()
    world.edit("TrainingJob", "demo", suspend=True)
    await watch()
    leave(world)
    await watch()
    world.edit("TrainingJob", "demo", suspend=False)
    await watch()
    assert {state for state, _ in seen} == {"Running", "Restarting", "Suspending", "Suspended"}
    assert {status for _, status in seen} == {"False"}


async def test_a_failure_degrades_a_job_until_it_trains_again_also_behind_a_scale() -> None:
    world = await running_scalable()
    scale(world, 3)
    await passes(world)
    leave(world)
    await passes(world)
    world.run_all()
    world.end(world.pod("trainer-0") or {}, 1)
    await passes(world)
    assert (world.state, shown(world, "Degraded")[:2]) == ("Restarting", ("True", "Restarting"))
    world.run_all()
    await passes(world)
    assert shown(world, "Degraded")[0] == "True"
    world.report_now = report("Running", 30)
    await passes(world)
    assert (world.state, shown(world, "Degraded")[0]) == ("Running", "False")


async def test_workers_that_restart_inside_their_pods_degrade_a_job() -> None:
    world = await running()
    world.report_now = report("Starting", 10)
    await passes(world)
    assert (world.state, shown(world, "Degraded")[:2]) == ("Restarting", ("True", "Restarting"))


async def test_a_suspension_that_is_taken_back_while_it_saves_is_a_resumption_and_no_failure() -> None:
    world = await running()
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world)
    world.edit("TrainingJob", "demo", suspend=False)
    await passes(world)
    for pod in list(world.pods()):
        world.end(pod, 3, report_text("Suspended", step=20))
    world.report_now, before = None, len(world.events)
    await passes(world)
    said = "coordinator: saved before it was resumed, and starts again"
    assert [(e.reason, e.message, e.warning) for e in world.events[before:]] == [("Resumed", said, False)]
    assert world.job["status"]["restarts"] == {"counted": 0, "ignored": 0}
    assert shown(world, "Degraded")[0] == "False"
    assert len([p for p in world.pods() if p["status"]["phase"] == "Pending"]) == 4


NOWHERE = replace(
    TRAINER, phase="Pending", ready=False, unscheduled_reason="Unschedulable", unscheduled="0/2 nodes: full"
)
TRAINED = {
    "step": 1,
    "steps": 2,
    "tokens": "0",
    "tokensPerSecond": "0",
    "idlePercent": "0",
    "etaSeconds": 0,
    "percent": "0",
}


@pytest.mark.parametrize(
    ("phase", "progress", "state"),
    [("", {}, "Unschedulable"), ("Starting", {}, "Unschedulable"), ("Starting", {"progress": TRAINED}, "Unschedulable"),
     ("Indexing", {}, "Indexing"), ("Running", {"progress": TRAINED}, "Running")],
)  # fmt: skip
def test_a_pod_that_no_node_takes_is_the_state_of_a_job_that_waits_for_it(
    phase: str, progress: Manifest, state: str
) -> None:
    scene = Scene((*GANG[:3], NOWHERE), report(phase) if phase else None, status=progress)
    assert scene.context().state_of_gang == state


def test_a_pod_that_a_queue_holds_back_is_queued_whatever_others_wait_for() -> None:
    gated = replace(LOADER, phase="Pending", ready=False, unscheduled_reason="SchedulingGated")
    assert Scene((COORDINATOR, gated, NOWHERE)).context().state_of_gang == "Queued"


@pytest.mark.parametrize(("placed", "state"), [(0, "Queued"), (1, "Unschedulable")])
def test_a_gang_of_which_the_scheduler_has_placed_no_pod_is_queued(placed: int, state: str) -> None:
    """A scheduler of whole gangs, as one with groups is: a pod with a node shows that it has begun."""
    nodes = tuple(replace(p, phase="Pending", ready=False, node="n") for p in GANG[:placed])
    observed = Scene((*nodes, NOWHERE), children=(ChildView("PodGroup", "demo-u-0"),)).observed
    assert build_context(observed, NOW, Settings(gang_backend="Volcano")).state_of_gang == state


@pytest.mark.parametrize(
    ("before", "ready", "said", "state"),
    [
        ("Running", True, None, "Running"),  # a single missed answer
        ("Running", False, None, "Restarting"),
        ("Running", True, "Failed", "Running"),  # its end is judged once it has left
        ("Queued", True, None, "Restarting"),  # its pods have started since
        ("", True, None, "Restarting"),
    ],
)
def test_a_job_keeps_its_state_while_its_coordinator_misses_an_answer_or_is_about_to_go(
    before: str, ready: bool, said: str | None, state: str
) -> None:
    known = [condition("Succeeded", "Unknown", reason=before)] if before else []
    scene = Scene(
        (replace(COORDINATOR, ready=ready), *GANG[1:]),
        report(said) if said else None,
        status={"conditions": known, "progress": TRAINED},
    )
    assert scene.context().state_of_gang == state


async def test_a_job_without_room_shows_the_schedulers_own_words_until_there_is_room() -> None:
    world = with_job()
    world.unplaceable = {"trainer-1"}
    await passes(world)
    world.run_all()
    world.report_now = report("Waiting", 0)
    await passes(world)
    words = "trainer-1: Unschedulable: 0/2 nodes are available: full."
    assert shown(world, "Progressing") == ("False", "Unschedulable", words)
    assert shown(world, "Succeeded") == ("Unknown", "Unschedulable", words)
    world.unplaceable = set()
    world.run(world.pod("trainer-1") or {})
    await passes(world)
    assert world.state == "Starting"


def test_a_restart_without_room_stays_degraded() -> None:
    before = [
        condition("Succeeded", "Unknown", reason="Restarting"),
        condition("Degraded", "True", reason="Restarting"),
    ]
    scene = Scene((*GANG[:3], NOWHERE), report("Starting"), status={"conditions": before, "progress": TRAINED})
    (write,) = (a for a in scene.decide().actions if hasattr(a, "status"))
    found = {c["type"]: (c["status"], c["reason"]) for c in write.status["conditions"]}
    assert (found["Succeeded"], found["Degraded"]) == (("Unknown", "Unschedulable"), ("True", "Restarting"))
