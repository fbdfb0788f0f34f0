"""Boundaries and refusals of the policies: the forbidden thing is tried, and so is the exact limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coxswain.names import API_VERSION, LABEL_INCARNATION, LABEL_INDEX, LABEL_JOB_UID, LABEL_ROLE
from coxswain_operator.controller import Controller
from coxswain_operator.reconcile import deadlines, leftovers, reconcile
from coxswain_operator.reconcile.actions import Delete, RequeueAt
from coxswain_operator.reconcile.context import build_context
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.settings import Settings
from coxswain_operator.views import HolderView, Manifest, PodView
from tests.unit.fake_cluster import (
    NAMESPACE,
    FakeCluster,
    report,
    report_text,
    with_job,
)
from tests.unit.reconcile_scenes import GANG, NOW, TRAINER, Scene, condition
from tests.unit.test_reconcile_lifecycle import RESTART_JOB, passes, running

FATAL = {"name": "fatal", "action": "Fail", "onExitCodes": {"operator": "In", "values": [9]}}


async def one_pass(world: FakeCluster) -> tuple[Delete, ...]:
    """The deletions of one pass."""
    decision = await Controller(world, world, world.clock).pass_once(NAMESPACE, "demo")
    assert decision is not None
    return tuple(action for action in decision.actions if isinstance(action, Delete))


async def test_suspension_stores_new_numbers_in_the_pass_that_deletes_the_pods() -> None:
    world = await running(failurePolicy={"maxRestarts": 0})
    world.edit("TrainingJob", "demo", suspend=True)
    world.end(world.pod("coordinator") or {}, 3, report_text("Suspended", step=20))
    assert {d.name for d in await one_pass(world)} >= {"demo-trainer-0-0", "demo-trainer-1-0"}
    assert [(e["name"], e["number"]) for e in world.job["status"]["incarnations"]] == [("all", 1)]
    assert world.job["status"]["seen"] == ""


async def test_suspension_taken_back_while_pods_leave_counts_no_loss() -> None:
    world = await running(failurePolicy={"maxRestarts": 0})
    world.edit("TrainingJob", "demo", suspend=True)
    world.end(world.pod("coordinator") or {}, 3, report_text("Suspended", step=20))
    await one_pass(world)
    world.edit("TrainingJob", "demo", suspend=False)
    world.reap()
    await passes(world)
    assert world.job["status"]["restarts"] == {"counted": 0, "ignored": 0}
    assert sorted(p["metadata"]["name"] for p in world.pods()) == [
        "demo-coordinator-1", "demo-loader-0-1", "demo-trainer-0-1", "demo-trainer-1-1",
    ]  # fmt: skip


async def suspended(world: FakeCluster) -> None:
    world.edit("TrainingJob", "demo", suspend=True)
    world.end(world.pod("coordinator") or {}, 3, report_text("Suspended", step=20))


async def failed(world: FakeCluster) -> None:
    world.end(world.pod("trainer-0") or {}, 9)


async def replaced(world: FakeCluster) -> None:
    world.end(world.pod("trainer-0") or {}, 1)


async def restarted(world: FakeCluster) -> None:
    world.end(world.pod("trainer-0") or {}, 7)


async def on_a_lost_node(world: FakeCluster) -> None:
    pod = world.pod("trainer-0") or {}
    world.set_node(pod["spec"]["nodeName"], "Unknown")
    pod["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:00Z"


async def outlived(world: FakeCluster) -> None:
    world.end(world.pod("coordinator") or {}, 0, report_text("Completed", step=100))
    await passes(world, 1)
    world.tick(14)


async def expired(world: FakeCluster) -> None:
    await outlived(world)
    world.tick(100)


async def reconfigured(world: FakeCluster) -> None:
    world.edit("DataMix", "mix", sources=[{"name": "code", "sourceRef": {"name": "code"}, "weight": 2}])


OF_PODS = (suspended, failed, replaced, restarted, on_a_lost_node, outlived)


@pytest.mark.parametrize("scene", OF_PODS)
async def test_a_pod_that_is_being_deleted_is_not_deleted_again(scene: Any) -> None:
    world = await running(failurePolicy={"rules": [RESTART_JOB, FATAL]})
    await scene(world)
    assert "Pod" in {d.kind for d in await one_pass(world)}
    assert await one_pass(world) == ()


@pytest.mark.parametrize(
    ("scene", "kind"),
    [(s, "Pod") for s in OF_PODS] + [(expired, "TrainingJob"), (reconfigured, "ConfigMap")],
)
async def test_every_deletion_names_the_uid_that_was_observed(scene: Any, kind: str) -> None:
    world = await running(failurePolicy={"rules": [RESTART_JOB, FATAL]}, ttlSecondsAfterFinished=100)
    await scene(world)
    observed = {(k, name): o["metadata"]["uid"] for (k, name), o in world.objects.items()}
    deletes = await one_pass(world)
    assert kind in {d.kind for d in deletes}
    assert [d.uid for d in deletes] == [observed[d.kind, d.name] for d in deletes]


async def test_a_pod_that_takes_the_name_of_the_observed_one_is_not_deleted() -> None:
    world = await running()
    pod = world.pod("trainer-1") or {}
    world.end(pod, 1)

    def swap(verb: str, what: str) -> None:
        if (verb, what) == ("delete", "demo-trainer-1-0"):
            pod["metadata"]["uid"] = "another"

    world.before_call = swap
    await one_pass(world)
    assert world.deleted == []


async def test_a_pod_that_vanished_leaves_its_number_to_no_other() -> None:
    world = await running()
    for number in (1, 2, 3):
        world.vanish(world.pod("trainer-1") or {})
        world.tick(1000)
        await passes(world, 2)
        world.run_all()
        await passes(world, 1)
        assert (world.pod("trainer-1") or {})["metadata"]["name"] == f"demo-trainer-1-{number}"


async def test_a_pod_that_vanished_before_its_number_was_seen_keeps_it_and_every_later_one_gets_another() -> None:
    world = await running()
    world.edit("TrainingJob", "demo", failurePolicy={"rules": [RESTART_JOB]})
    world.vanish(world.pod("trainer-1") or {})
    await passes(world, 2)
    world.end(world.pod("trainer-0") or {}, 7)
    await passes(world, 6)
    assert {p["metadata"]["name"].rsplit("-", 1)[1] for p in world.pods()} == {"2"}  # one more than the highest


@pytest.mark.parametrize(("limit", "state"), [(61, "Running"), (60, "Failed")])
async def test_the_deadline_ends_a_job_in_its_last_second(limit: int, state: str) -> None:
    world = await running(activeDeadlineSeconds=limit)
    started = world.job["status"]["startTime"]
    world.now = 1000.0 + 60
    assert started == "1970-01-01T00:16:40Z"
    await one_pass(world)
    assert world.state == state


@pytest.mark.parametrize(("since", "seconds"), [(NOW - 30, 70.0), (NOW, 40.0), (NOW + 500, 40.0)])
def test_a_clock_that_is_set_back_takes_no_active_time_away(since: float, seconds: float) -> None:
    status = {"conditions": [condition("Suspended", "False")], "activeSeconds": 40, "activeSince": stamp(since)}
    assert deadlines.active_seconds(Scene(GANG, status=status).context()) == seconds


async def test_a_job_that_has_completed_is_not_failed_by_a_deadline_that_has_passed_since() -> None:
    world = await running(activeDeadlineSeconds=100)
    world.end(world.pod("coordinator") or {}, 0, report_text("Completed", step=100))
    world.tick(1000)
    await passes(world, 1)
    assert world.state == "Completed"


@pytest.mark.parametrize(
    ("phase", "state"), [("Completed", "Completed"), ("Running", "Failed"), ("Suspended", "Failed")]
)
async def test_a_deadline_does_not_fail_a_job_whose_coordinator_has_announced_that_it_is_complete(
    phase: str, state: str
) -> None:
    world = await running(activeDeadlineSeconds=100)
    world.report_now = report(phase, 100)
    world.tick(1000)
    await one_pass(world)
    world.end(world.pod("coordinator") or {}, 0, report_text("Completed", step=100))
    await one_pass(world)
    assert world.state == state


async def test_a_deadline_fails_a_job_whose_coordinator_fails_after_it_has_announced_the_end() -> None:
    world = await running(activeDeadlineSeconds=100)
    world.report_now = report("Completed", 100)
    world.tick(1000)
    world.end(world.pod("coordinator") or {}, 1, report_text("Completed", step=100))
    await one_pass(world)
    assert world.state == "Failed"


@pytest.mark.parametrize(("seconds", "deleted"), [(14, 0), (15, 3)])
async def test_pods_of_a_completed_job_get_fifteen_seconds(seconds: int, deleted: int) -> None:
    world = await running()
    world.end(world.pod("coordinator") or {}, 0, report_text("Completed", step=100))
    await one_pass(world)
    world.tick(seconds)
    assert len(await one_pass(world)) == deleted


@pytest.mark.parametrize(("ttl", "seconds", "exists"), [(100, 99, True), (100, 100, False), (0, 0, False)])
async def test_a_finished_job_is_deleted_when_its_time_to_live_is_over(ttl: int, seconds: int, exists: bool) -> None:
    world = await running(ttlSecondsAfterFinished=ttl)
    world.end(world.pod("coordinator") or {}, 0, report_text("Completed", step=100))
    await one_pass(world)
    world.tick(seconds)
    await one_pass(world)
    assert (("TrainingJob", "demo") in world.objects) is exists


def over(state: str, status: str) -> Manifest:
    return {"conditions": [condition("Succeeded", status, reason=state)], "completionTime": stamp(NOW)}


@pytest.mark.parametrize(("state", "status", "deleted"), [("Failed", "False", 4), ("Completed", "True", 0)])
def test_of_ended_jobs_only_one_that_is_completed_gives_its_pods_time_to_leave(
    state: str, status: str, deleted: int
) -> None:
    assert len(Scene(GANG, status=over(state, status)).decide().of(Delete)) == deleted


@pytest.mark.parametrize("deleted", [False, True], ids=["ended", "deleted"])
def test_pods_on_lost_nodes_are_deleted_by_force_behind_the_end_and_the_deletion_of_a_job(deleted: bool) -> None:
    lost = replace(TRAINER, node="n", deleting=True, node_conditions=frozenset({("Ready", "Unknown")}))
    observed = Scene((lost,), status={} if deleted else over("Completed", "True")).observed
    observed.job["metadata"] |= {"deletionTimestamp": stamp(NOW)} if deleted else {}
    (forced,) = reconcile(observed, NOW).of(Delete)
    assert (forced.name, forced.force) == (lost.name, True)


@pytest.mark.parametrize("deleting", [False, True])
def test_a_finished_job_that_is_being_deleted_is_not_deleted_again_when_its_time_to_live_is_over(
    deleting: bool,
) -> None:
    observed = Scene((), spec={"ttlSecondsAfterFinished": 100}, status=over("Completed", "True")).observed
    observed.job["metadata"] |= {"deletionTimestamp": stamp(NOW)} if deleting else {}
    assert bool(reconcile(observed, NOW + 100).of(Delete)) is not deleting


@pytest.mark.parametrize(("status", "asked"), [("False", [NOW + 30]), ("True", [])])
def test_only_a_job_that_is_not_suspended_asks_for_a_pass_at_its_deadline(status: str, asked: list[float]) -> None:
    clock = {"activeSeconds": 30} if status == "True" else {"activeSince": stamp(NOW - 30)}
    scene = Scene(spec={"activeDeadlineSeconds": 60}, status={"conditions": [condition("Suspended", status)], **clock})
    assert list(deadlines.requeue_times(scene.context())) == asked


def test_a_finished_job_is_looked_at_again_when_its_time_to_live_is_over() -> None:
    scene = Scene((), spec={"ttlSecondsAfterFinished": 100}, status=over("Completed", "True"))
    assert RequeueAt(NOW + 100) in scene.decide().of(RequeueAt)


@pytest.mark.parametrize(("count", "others"), [(1, ""), (2, " (and 1 more)"), (3, " (and 2 more)")])
def test_a_job_names_one_object_that_holds_a_name_of_its_children_and_counts_the_others(
    count: int, others: str
) -> None:
    holders = tuple(HolderView("Service", f"demo-{i}", str(i), "TrainingJob other") for i in range(count))
    ctx = build_context(replace(Scene().observed, holders=holders), NOW, Settings())
    assert leftovers.describe(ctx) == (
        f"NameTaken: Service demo-0 belongs to TrainingJob other; delete it, or give the job another name{others}"
    )
    assert leftovers.describe(Scene().context()) == ""


def orphan(name: str, **meta: Any) -> Manifest:
    """A pod of an earlier job of the same name, which was deleted without its pods."""
    owner = {"apiVersion": API_VERSION, "kind": "TrainingJob", "name": "demo", "uid": "before", "controller": True}
    labels = {LABEL_ROLE: "trainer", LABEL_INDEX: "1", LABEL_INCARNATION: name.rpartition("-")[2]}
    head = {"name": name, "namespace": NAMESPACE, "labels": labels, "ownerReferences": [owner], **meta}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": {"nodeName": "n"}}
    return {**pod, "status": {"phase": "Running"}}


async def with_orphan(pod: Manifest) -> FakeCluster:
    world = with_job()
    world.set_node("n", "Unknown")
    world.put(pod)
    controller = Controller(world, world, world.clock)
    for _ in range(4):
        await controller.pass_once(NAMESPACE, "demo")
        world.tick()
    return world


async def test_a_pod_of_an_earlier_job_that_holds_no_name_of_this_one_stays_as_it_is() -> None:
    world = await with_orphan(orphan("demo-trainer-1-7"))
    assert "deletionTimestamp" not in world.objects["Pod", "demo-trainer-1-7"]["metadata"]


async def test_a_pod_of_an_earlier_job_that_holds_a_name_on_a_lost_node_is_deleted_by_force() -> None:
    world = await with_orphan(orphan("demo-trainer-1-0", deletionTimestamp=stamp(990.0)))
    assert world.created.count("demo-trainer-1-0") == 1


async def test_an_object_that_only_carries_the_label_of_a_job_is_no_child_of_it() -> None:
    """As one that a person has copied from a child: labels prove nothing."""
    world = await running()
    labels = {LABEL_JOB_UID: world.job["metadata"]["uid"]}
    copy = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine", "labels": labels}, "data": {}}
    world.put(copy)
    await passes(world)
    assert ("ConfigMap", "mine") in world.objects


OLD = replace(TRAINER, name="demo-trainer-1-7", uid="old", created=999.0)  # the job is of second 1000
HOLDER = HolderView("Service", "demo", "h", "TrainingJob demo", leftover=True)


@pytest.mark.parametrize(
    ("pods", "holders", "deleted"),
    [
        ((OLD,), (), [Delete("Pod", OLD.name, "old")]),
        ((replace(OLD, created=1000.0),), (), [Delete("Pod", OLD.name, "old")]),
        ((replace(OLD, created=1001.0),), (), []),  # of a younger job, which this operator does not see yet
        ((replace(OLD, deleting=True),), (), []),
        ((), (HOLDER,), [Delete("Service", "demo", "h")]),
        ((), (replace(HOLDER, deleting=True),), []),
        ((), (replace(HOLDER, leftover=False, owner="Deployment web"),), []),
        ((OLD,), (replace(HOLDER, kind="Pod", name=OLD.name),), [Delete("Pod", OLD.name, "old")]),  # once
        ((), (replace(HOLDER, kind="Pod"),), []),  # it is not known to be older
    ],
)
def test_of_what_is_not_the_jobs_own_it_deletes_only_what_an_earlier_job_of_its_name_left_behind(
    pods: tuple[PodView, ...], holders: tuple[HolderView, ...], deleted: list[Delete]
) -> None:
    observed = replace(Scene().observed, leftovers=pods, holders=holders)
    assert list(leftovers.deletes(build_context(observed, NOW, Settings()))) == deleted
