"""A job's life through the controller, over a cluster in memory."""

from __future__ import annotations

import asyncio

import pytest

from coxswain.errors import Refused
from coxswain.names import CONDITIONS
from coxswain.wire import JobEvent
from coxswain_operator.children.job_token import TokenKeys
from coxswain_operator.controller import Controller
from coxswain_operator.reconcile.actions import RequeueAt, WriteStatus
from coxswain_operator.reconcile.child_diff import BUDGET_SECONDS
from coxswain_operator.reconcile.status import read_status
from coxswain_operator.reconcile.times import seconds, stamp
from coxswain_operator.single_job import run_job
from coxswain_operator.views import Manifest
from tests.unit.fake_cluster import (
    NAMESPACE,
    FakeCluster,
    data_mix,
    data_source,
    report,
    report_text,
    training_job,
    with_job,
)
from tests.unit.reconcile_scenes import COORDINATOR, GANG, Scene, ended


async def passes(world: FakeCluster, count: int = 4) -> None:
    controller = Controller(world, world, world.clock, keys=KEYS)
    for _ in range(count):
        await controller.pass_once(NAMESPACE, "demo")
        world.tick()
        world.reap()


KEYS = TokenKeys((b"of the operator that all passes are of",))
RESTART_JOB = {"name": "restart-job", "action": "RestartJob", "onExitCodes": {"operator": "In", "values": [7]}}


async def running(**spec: object) -> FakeCluster:
    """A job whose pods are ready and whose coordinator says Running."""
    world = with_job(**spec)
    await begin(world)
    return world


async def begin(world: FakeCluster) -> None:
    """Its job trains from now on."""
    await passes(world)
    world.run_all()
    world.report_now = report("Running", 10)
    await passes(world)


async def test_a_job_gets_one_pod_for_each_member_and_all_other_children() -> None:
    world = with_job()
    await passes(world)
    assert sorted(world.created) == ["demo-coordinator-0", "demo-loader-0-0", "demo-trainer-0-0", "demo-trainer-1-0"]
    kinds = {kind for kind, _ in world.objects}
    assert {"Secret", "ConfigMap", "Service", "NetworkPolicy"} <= kinds


@pytest.mark.parametrize(("code", "state"), [(0, "Completed"), (1, "Restarting"), (3, "Restarting")])
async def test_a_coordinator_is_judged_by_its_container_and_not_by_its_pod(code: int, state: str) -> None:
    world = await running()
    coordinator, world.report_now = world.pod("coordinator"), None
    world.end(coordinator, code, report_text("Completed", step=100))
    coordinator["status"]["phase"] = "Running"
    await passes(world)
    assert world.state == state


async def test_a_coordinator_that_has_left_is_judged_by_its_last_report_and_not_by_the_one_polled_before() -> None:
    left = ended(0, COORDINATOR, message=report_text("Completed", step=100))
    decision = Scene((left, *GANG[1:]), report("Running", 99, checkpoint_step=90)).decide()
    (write,) = decision.of(WriteStatus)
    assert read_status({"status": write.status}).state == "Completed"


def budgets(world: FakeCluster) -> list[Manifest]:
    return [o for (kind, _), o in world.objects.items() if kind == "PodDisruptionBudget"]


async def test_a_gang_is_protected_from_drains_once_it_is_whole_and_trains() -> None:
    world = with_job()
    await passes(world)
    world.run(world.pod("coordinator") or {})
    world.report_now = report("Running", 1)
    world.tick(2 * BUDGET_SECONDS)
    await passes(world)
    assert not budgets(world)
    world.run_all()
    await passes(world)
    budget = world.objects["PodDisruptionBudget", "demo"]["spec"]
    assert budget["minAvailable"] == 3
    assert all(budget["selector"]["matchLabels"].items() <= p["metadata"]["labels"].items() for p in world.pods())


async def whole() -> FakeCluster:
    """A gang whose pods are all ready and do not train yet."""
    world = with_job()
    await passes(world)
    world.run_all()
    await passes(world, 1)
    return world


async def test_a_gang_that_does_not_train_yet_is_protected_when_it_has_been_whole_for_two_minutes() -> None:
    world = await whole()
    world.tick(BUDGET_SECONDS - 2)
    controller = Controller(world, world, world.clock, keys=KEYS)
    decision = await controller.pass_once(NAMESPACE, "demo")
    due = world.now + 1
    assert decision and due in [a.time for a in decision.of(RequeueAt)] and not budgets(world)
    world.now = due
    await passes(world, 1)
    assert budgets(world)


async def test_a_gang_that_was_not_whole_meanwhile_waits_for_its_protection_from_then_on() -> None:
    world = await whole()
    world.vanish(world.pod("trainer-0") or {})
    await passes(world)
    world.run_all()
    world.tick(BUDGET_SECONDS)
    await passes(world, 1)
    assert not budgets(world)
    world.tick(BUDGET_SECONDS)
    await passes(world, 1)
    assert budgets(world)


async def test_a_job_that_kept_its_protection_is_not_looked_at_for_it_when_it_is_whole_again() -> None:
    world = await whole()
    world.tick(BUDGET_SECONDS)
    await passes(world)
    world.vanish(world.pod("trainer-0") or {})
    await passes(world)
    world.run_all()
    await passes(world)
    assert budgets(world)
    decision = await Controller(world, world, world.clock, keys=KEYS).pass_once(NAMESPACE, "demo")
    due = seconds(world.condition("PodsReady")["lastTransitionTime"]) + BUDGET_SECONDS
    assert decision and due > world.now and due not in [a.time for a in decision.of(RequeueAt)]


async def test_the_protection_stays_while_one_pod_is_replaced_and_goes_with_the_attempt() -> None:
    world = await running(failurePolicy={"rules": [RESTART_JOB]})
    uid = world.objects["PodDisruptionBudget", "demo"]["metadata"]["uid"]
    world.vanish(world.pod("trainer-0") or {})
    await passes(world)
    assert world.objects["PodDisruptionBudget", "demo"]["metadata"]["uid"] == uid
    world.run_all()
    world.end(world.pod("trainer-1") or {}, 7)
    await passes(world)
    assert ("PodDisruptionBudget", "demo") not in world.objects
    world.run_all()
    await passes(world)
    assert (
        world.objects["PodDisruptionBudget", "demo"]["spec"]["selector"]["matchLabels"]["coxswain.dev/attempt"] == "1"
    )


async def test_a_running_job_reports_its_state_and_progress() -> None:
    world = await running()
    status = world.job["status"]
    assert world.state == "Running"
    assert status["ready"] == "2/2"
    assert status["progress"]["step"] == 10 and status["progress"]["loss"] == "2.5000"
    assert [h.reason for h in world.events] == ["Validated", "GangStarted"]


async def test_a_job_whose_coordinator_leaves_with_0_is_completed_and_stays_so() -> None:
    world = await running()
    world.end(world.pod("coordinator"), 0, report_text("Completed", step=100, reason="StopReached"))
    await passes(world)
    assert world.state == "Completed"
    assert world.condition("Progressing")["reason"] == "StopReached"
    before = world.status_writes
    world.vanish(world.pod("trainer-0"))
    await passes(world, 20)
    assert world.status_writes == before
    assert not [p for p in world.pods() if p["status"]["phase"] == "Running"]


@pytest.mark.timeout(10)
async def test_run_job_returns_once_the_job_is_over_and_its_pods_are_gone() -> None:
    world = await running()
    controller = Controller(world, world, world.clock, poll_seconds=0.01)
    run = asyncio.create_task(run_job(controller, world, NAMESPACE, "demo"))
    for pod in list(world.pods()):
        world.end(pod, 0, report_text("Completed", step=100, reason="DataExhausted"))
    job = await run
    assert job is not None and job["status"]["progress"]["step"] == 100


@pytest.mark.timeout(10)
async def test_run_job_keeps_a_job_that_is_to_be_deleted_at_its_end_since_its_caller_has_yet_to_read_it() -> None:
    world = await running(ttlSecondsAfterFinished=0)

    def pass_time(verb: str, _: str) -> None:
        if verb == "patch":
            world.tick(600)  # the job has ended: from now on the trainers are to leave
        for pod in world.pods() if verb == "delete" else ():
            world.end(pod, 0)

    world.end(world.pod("coordinator"), 0, report_text("Completed", step=100, reason="StopReached"))
    world.before_call = pass_time
    job = await run_job(Controller(world, world, world.clock, poll_seconds=0.01), world, NAMESPACE, "demo")
    assert job is not None and world.job["spec"]["ttlSecondsAfterFinished"] == 0
    assert "deletionTimestamp" not in job["metadata"]


@pytest.mark.timeout(10)
async def test_the_last_pass_of_run_job_publishes_the_end_that_it_wrote() -> None:
    world, leave = await running(), asyncio.Event()
    world.end(world.pod("coordinator"), 0, report_text("Completed", step=100, reason="StopReached"))
    world.before_call = lambda verb, what: leave.set() if verb == "patch" else None
    controller = Controller(world, world, world.clock, poll_seconds=3600)
    job = await run_job(controller, world, NAMESPACE, "demo", leave)
    assert job is not None and world.state == "Completed"
    assert world.events[-1].reason == "Completed"


async def test_a_job_whose_mix_is_missing_waits_by_name_and_starts_when_it_comes() -> None:
    world = FakeCluster(data_source(), training_job())
    await passes(world)
    assert (world.state, world.condition("Validated")["status"], world.pods()) == ("Queued", "False", [])
    assert "mix" in world.condition("Validated")["message"]
    world.put(data_mix())
    await passes(world)
    assert world.condition("Validated")["status"] == "True"
    assert len(world.pods()) == 4


async def test_all_conditions_are_set_from_the_first_pass_on() -> None:
    world = FakeCluster(training_job())
    await passes(world, 1)
    assert [c["type"] for c in world.job["status"]["conditions"]] == list(CONDITIONS)


async def test_a_pass_without_changes_does_nothing() -> None:
    world = await running()
    decision = await Controller(world, world, world.clock).pass_once(NAMESPACE, "demo")
    assert decision is not None and decision.actions == ()


async def test_a_lost_coordinator_alone_is_replaced() -> None:
    world = await running()
    world.vanish(world.pod("coordinator"))
    await passes(world)
    assert (world.created[4:], world.deleted) == (["demo-coordinator-1"], [])
    assert world.state == "Restarting"


async def test_each_of_the_coordinators_events_is_published_once_and_those_of_its_successor_too() -> None:
    world = await running()
    for _ in range(2):
        for sequence in range(3):
            saved = tuple(JobEvent(n, 1.0, "CheckpointSaved", f"step {n}") for n in range(sequence + 1))
            world.report_now = report("Running", 11, events=saved)
            await passes(world, 2)
        world.vanish(world.pod("coordinator"))
        world.report_now = None
        await passes(world, 2)
        world.run_all()
    assert [h.message for h in world.events if h.reason == "CheckpointSaved"] == ["step 0", "step 1", "step 2"] * 2


@pytest.mark.parametrize("whole", [True, False])
async def test_a_coordinator_that_is_replaced_and_still_answers_takes_no_event_from_its_successor(whole: bool) -> None:
    world = await running(failurePolicy={"rules": [RESTART_JOB]})
    first = world.pod("coordinator") or {}
    world.report_now = report("Running", 11, events=(JobEvent(0, 1.0, "CheckpointSaved", "of the first"),))
    await passes(world)
    first["metadata"]["finalizers"] = ["example.com/slow"]
    if whole:
        world.end(world.pod("trainer-0"), 7)
    else:
        await world.delete("Pod", NAMESPACE, first["metadata"]["name"])
    await passes(world)
    world.vanish(first)
    await passes(world)
    world.run_all()
    world.report_now = report("Running", 12, events=(JobEvent(0, 2.0, "CheckpointSaved", "of the second"),))
    await passes(world)
    assert [e.message for e in world.events if e.reason == "CheckpointSaved"] == ["of the first", "of the second"]


async def test_a_pod_that_the_cluster_refuses_ends_the_job_with_the_clusters_message() -> None:
    world = with_job()
    controller = Controller(world, world, world.clock)

    def refuse(verb: str, what: str) -> None:
        if (verb, what) == ("create", "demo-trainer-0-0"):
            raise Refused("UnsupportedVolume", "volume 'data' needs Kubernetes")

    world.before_call = refuse
    for _ in range(4):
        await controller.pass_once(NAMESPACE, "demo")
    assert world.condition("Succeeded")["message"] == "UnsupportedVolume: volume 'data' needs Kubernetes"


async def test_one_missed_report_changes_nothing_that_people_see() -> None:
    world = await running()
    before, world.report_now = world.job["status"], None
    await passes(world, 3)
    assert world.job["status"] == before


async def test_a_mix_that_is_deleted_while_the_job_runs_is_reported_and_stops_nothing() -> None:
    world = await running()
    del world.objects["DataMix", "mix"]
    await passes(world)
    assert (world.state, world.condition("Validated")["status"]) == ("Running", "False")
    assert (world.deleted, len(world.pods())) == ([], 4)


async def test_a_job_that_is_being_deleted_gets_no_children_and_no_replacements() -> None:
    """As long as a finalizer keeps it; after that the garbage collector removes what it had."""
    world = with_job()
    world.job["metadata"] |= {"deletionTimestamp": stamp(world.now), "finalizers": ["example.com/audit"]}
    await passes(world)
    assert world.created == [] and {kind for kind, _ in world.objects} == {"DataSource", "DataMix", "TrainingJob"}
    world = await running()
    world.job["metadata"]["deletionTimestamp"] = stamp(world.now)
    world.vanish(world.pod("trainer-1"))
    created = [*world.created]
    await passes(world, 6)
    assert (world.created, world.pod("trainer-1")) == (created, None)


async def test_the_pods_of_a_job_that_is_being_deleted_are_deleted_by_force_on_a_lost_node() -> None:
    world = await running()
    world.job["metadata"]["deletionTimestamp"] = stamp(world.now)
    world.set_node("node-of-trainer-1", "Unknown")
    for pod in world.pods():
        await world.delete("Pod", NAMESPACE, pod["metadata"]["name"])
    await passes(world)
    assert world.pods() == []
