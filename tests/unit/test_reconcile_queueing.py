"""A job in a queue of Kueue's, which keeps the pods of a group, and the group's share, until it knows that the group is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coxswain_operator.children.scheduling import POD_GROUP, RETRIABLE
from coxswain_operator.controller import Controller
from coxswain_operator.reconcile import reconcile
from coxswain_operator.reconcile.actions import LeaveQueue
from coxswain_operator.reconcile.pending import GATED
from coxswain_operator.reconcile.queueing import release_groups
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import AdmissionView, Manifest, PodView
from tests.unit.fake_cluster import NAMESPACE, FakeCluster, data_mix, data_source, live, member_of, training_job
from tests.unit.reconcile_scenes import NOW, Scene, condition
from tests.unit.test_reconcile_lifecycle import RESTART_JOB, begin, passes

QUEUE: dict[str, Any] = {"queueing": {"backend": "Kueue", "queueName": "research"}}
TOTAL = 4  # pods of the job


def group_of(pod: Manifest) -> str:
    group: str = pod["metadata"]["labels"][POD_GROUP]
    return group


def deleting(pod: Manifest) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def placed(pod: Manifest) -> bool:
    return "nodeName" in pod["spec"]


def marked(pod: Manifest) -> bool:
    return pod["metadata"].get("annotations", {}).get(RETRIABLE) == "false"


class Queued(FakeCluster):
    """Kueue lets a pod go when its group has an end, its Workload was deleted, or it has a successor in the group."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(data_source(), data_mix(), training_job(scheduling=QUEUE, **spec))
        self.ended: list[str] = []  # groups whose Workloads were deleted
        self.marks: list[str] = []  # names of pods

    async def leave_queue(self, namespace: str, group: str, pod: str, uid: str = "") -> None:
        if pod:
            assert self.objects["Pod", pod]["metadata"]["uid"] == uid
            self.marks.append(pod)
            self.objects["Pod", pod]["metadata"].setdefault("annotations", {})[RETRIABLE] = "false"
            return
        self.ended.append(group)
        for one in self.group(group):  # finished ones as well, as Kueue does
            self.vanish(one)

    def group(self, name: str) -> list[Manifest]:
        return [pod for pod in self.pods() if group_of(pod) == name]

    def gate(self) -> None:
        """Nothing is admitted."""
        for pod in self.pods():
            self.unschedulable(pod, GATED)

    def reap(self) -> None:
        for pod in filter(deleting, self.pods()):
            if placed(pod) and live(pod):
                pod["status"]["phase"] = "Failed"
            if self._lets_go(pod):
                self.vanish(pod)

    def _lets_go(self, pod: Manifest) -> bool:
        group = self.group(group_of(pod))
        runnable = [p for p in group if p["status"]["phase"] != "Failed" and (placed(p) or not deleting(p))]
        over = not any(live(p) for p in group) and any(marked(p) for p in group)
        return over or (pod not in runnable and len(runnable) == TOTAL)


async def admitted(**spec: Any) -> Queued:
    """A queued job that trains."""
    world = Queued(**spec)
    await begin(world)
    return world


async def test_a_job_that_waits_in_its_queue_can_be_suspended() -> None:
    world = Queued()
    await passes(world)
    world.gate()
    await passes(world)
    assert world.state == "Queued"
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world)
    assert (world.state, world.pods()) == ("Suspended", [])


async def test_a_job_that_waits_in_its_queue_can_restart_with_another_number_of_trainers() -> None:
    world = Queued(trainers={"count": 2, "minCount": 1, "maxCount": 4})
    await passes(world)
    world.gate()
    world.edit("TrainingJob", "demo", trainers={"count": 1, "minCount": 1, "maxCount": 4})
    await passes(world, 6)
    assert len({group_of(pod) for pod in world.pods()}) == 1
    assert sorted(map(member_of, world.pods())) == ["coordinator", "loader-0", "trainer-0"]


async def test_a_gated_pod_that_a_user_deletes_gets_a_successor_in_its_group() -> None:
    world = Queued()
    await passes(world)
    world.gate()
    pod = world.pod("trainer-1") or {}
    await world.delete("Pod", NAMESPACE, pod["metadata"]["name"])
    await passes(world)
    assert sorted(map(member_of, world.pods())) == ["coordinator", "loader-0", "trainer-0", "trainer-1"]
    assert {group_of(p) for p in world.pods()} == {group_of(pod)}
    assert (world.ended, world.marks) == ([], [])


async def test_pods_that_kueue_evicts_come_back_in_their_group_uncounted() -> None:
    world = await admitted()
    (group,) = {group_of(pod) for pod in world.pods()}
    world.report_now = None
    for pod in world.pods():
        await world.delete("Pod", NAMESPACE, pod["metadata"]["name"])
    await passes(world, 8)
    assert {group_of(pod) for pod in world.pods() if not deleting(pod)} == {group}
    assert len([pod for pod in world.pods() if live(pod)]) == TOTAL
    assert (world.job["status"]["restarts"]["counted"], world.ended, world.marks) == (0, [], [])


async def test_a_job_whose_pods_have_all_gone_and_that_is_then_scaled_is_another_group() -> None:
    """Its pods name another number: Kueue admits no group whose pods disagree."""
    bounds = {"minCount": 1, "maxCount": 4}
    world = Queued(trainers={"count": 2})
    await begin(world)
    (group,) = {group_of(pod) for pod in world.pods()}
    world.report_now = None
    for pod in world.pods():
        await world.delete("Pod", NAMESPACE, pod["metadata"]["name"])
    await Controller(world, world, world.clock).pass_once(NAMESPACE, "demo")
    world.edit("TrainingJob", "demo", trainers={"count": 1, **bounds})
    await passes(world, 8)
    assert group not in {group_of(pod) for pod in world.pods()}


async def test_a_restart_of_the_job_is_another_group_and_ends_the_one_before() -> None:
    world = await admitted(failurePolicy={"rules": [RESTART_JOB]})
    (group,) = {group_of(pod) for pod in world.pods()}
    world.end(world.pod("trainer-0") or {}, 7)
    await passes(world, 8)
    assert world.group(group) == []
    assert len(world.pods()) == TOTAL


async def test_a_failed_job_gives_its_share_back_and_keeps_its_dead_pods_for_their_logs() -> None:
    fatal = {"name": "fatal", "action": "Fail", "onExitCodes": {"operator": "In", "values": [9]}}
    world = await admitted(failurePolicy={"rules": [fatal]})
    failed = world.pod("trainer-0") or {}
    world.end(failed, 9)
    await passes(world, 6)
    assert world.state == "Failed"
    assert (len(world.marks), world.ended) == (1, [])
    assert [pod["metadata"]["name"] for pod in world.pods()] == [failed["metadata"]["name"]]


async def test_the_gated_pods_of_a_job_that_was_deleted_are_let_go() -> None:
    world = Queued()
    await passes(world)
    world.gate()
    del world.objects["TrainingJob", "demo"]
    for pod in world.pods():
        await world.delete("Pod", NAMESPACE, pod["metadata"]["name"])
    assert await Controller(world, world, world.clock).reconcile_job(NAMESPACE, "demo") is None
    assert world.pods() == []
    assert len(world.ended) == 1


async def test_the_dead_pods_of_a_job_that_was_deleted_are_let_go_by_a_mark_on_one_of_them() -> None:
    """Of this uid: another job's pod may have the name by then."""
    world = await admitted()
    del world.objects["TrainingJob", "demo"]
    for pod in world.pods():
        world.end(pod, 1)
    await Controller(world, world, world.clock).reconcile_job(NAMESPACE, "demo")
    assert (world.marks, world.ended) == (["demo-coordinator-0"], [])


def deleted_and_made_again(world: Queued) -> list[Manifest]:
    """The job and, by the garbage collector, its pods, before the operator looks; returns the pods of the first job."""
    del world.objects["TrainingJob", "demo"]
    for pod in world.pods():
        pod["metadata"]["deletionTimestamp"] = stamp(world.now)
    before = world.pods()
    world.put(training_job(scheduling=QUEUE))
    return before


@pytest.mark.parametrize("runs", [False, True], ids=["gated", "running"])
async def test_the_group_of_a_job_that_is_made_again_at_once_is_let_go_by_its_successor(runs: bool) -> None:
    """No pass has seen that there was no job: the new one's are the only passes that look."""
    world = await admitted() if runs else Queued()
    if not runs:
        await passes(world)
        world.gate()
    before = deleted_and_made_again(world)
    world.report_now = None
    await passes(world, 6)
    groups = {group_of(pod) for pod in world.pods()}
    assert len(world.pods()) == TOTAL and groups.isdisjoint(map(group_of, before))


async def test_a_group_that_holds_no_name_of_the_job_that_is_made_again_is_let_go_too() -> None:
    world = Queued()
    await passes(world)
    world.gate()
    for pod in world.pods():  # the first job had started again: its pods have other numbers
        meta = pod["metadata"]
        world.objects["Pod", f"{meta['name']}7"] = world.objects.pop(("Pod", meta["name"]))
        meta["name"] += "7"
    before = deleted_and_made_again(world)
    await passes(world, 6)
    assert world.ended == [group_of(before[0])] and len(world.pods()) == TOTAL


async def test_what_is_left_of_a_group_is_let_go_also_once_the_job_that_is_made_again_trains() -> None:
    world = await admitted()
    (before, *others) = deleted_and_made_again(world)
    for pod in others:
        world.vanish(pod)
    name = before["metadata"]["name"]
    world.objects["Pod", f"{name}7"] = world.objects.pop(("Pod", name))
    before["metadata"] |= {"name": f"{name}7", "finalizers": ["kueue.x-k8s.io/managed"]}
    await begin(world)
    assert world.state == "Running" and world.marks == [f"{name}7"]


RUNS = PodView("a", "a", "trainer", 0, 0, phase="Running", node="n", group="old")
GOING = replace(RUNS, name="b", deleting=True)  # for ever, on a lost node
HELD = replace(RUNS, name="c", phase="Pending", node="", deleting=True)
DEAD = replace(RUNS, name="d", phase="Failed")
MARKED = replace(DEAD, name="e", given_up=True)
MARK_B, MARK_D, END = LeaveQueue("old", "b", "a"), LeaveQueue("old", "d", "a"), LeaveQueue("old")


@pytest.mark.parametrize(
    ("pods", "releases"),
    [
        ((DEAD, RUNS), []),
        ((replace(DEAD, lingers=True),), []),  # a container beside ours runs on
        ((HELD, RUNS), []),
        ((GOING,), [MARK_B]),
        ((GOING, DEAD), [MARK_D]),  # which stays, for its log
        ((replace(DEAD, name="x"), DEAD), [MARK_D]),
        ((GOING, HELD), [END]),
        ((MARKED, HELD), [END]),
        ((DEAD, MARKED), []),
        ((replace(DEAD, group=""), replace(DEAD, group="now"), DEAD), [MARK_D]),
        ((replace(RUNS, group="elder"), DEAD), [MARK_D]),
        ((replace(DEAD, group="elder"), DEAD), [LeaveQueue("elder", "d", "a"), MARK_D]),
    ],
)
def test_a_group_is_released_once_when_none_of_its_pods_runs_on(
    pods: tuple[PodView, ...], releases: list[LeaveQueue]
) -> None:
    assert list(release_groups(pods, "now")) == releases


@pytest.mark.parametrize("how", ["Completed", "Failed", "deleted"])
def test_every_group_and_workload_of_a_job_that_is_over_or_kept_by_a_finalizer_is_released(how: str) -> None:
    """One pass may have been lost with its operator: the next ones release what it has not."""
    over = {"conditions": [condition("Succeeded", str(how == "Completed"), reason=how)], "completionTime": stamp(NOW)}
    scene = Scene((DEAD,), status={} if how == "deleted" else over)
    observed = replace(scene.observed, admissions=(AdmissionView("old"), AdmissionView("demo-u-0")))
    if how == "deleted":
        observed.job["metadata"]["deletionTimestamp"] = stamp(NOW)
    assert reconcile(observed, NOW).of(LeaveQueue) == (MARK_D, LeaveQueue("demo-u-0"))


async def test_a_job_that_its_queue_does_not_admit_names_the_workload_that_says_why() -> None:
    """Kueue says there alone that it is deactivated, or that its queue is stopped or does not exist."""
    world = Queued()
    await passes(world)
    for pod in world.pods():
        world.unschedulable(pod, GATED)
    await passes(world, 20)
    assert world.state == "Queued"
    command = f"`kubectl describe workload {group_of(world.pods()[0])}`"
    assert [command in world.condition(c)["message"] for c in ("Succeeded", "Progressing", "PodsReady")] == [True] * 3
