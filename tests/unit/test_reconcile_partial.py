"""A job with minCount in a queue of Kueue's: the operator asks for a range, and creates as many pods as are admitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from coxswain_operator.children.scheduling import DELETABLE, POD_GROUP
from coxswain_operator.children.workload import in_version
from coxswain_operator.kubernetes.workloads import admission_view
from coxswain_operator.reconcile import queueing
from coxswain_operator.reconcile.actions import LeaveQueue
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import AdmissionView, Manifest, PodView
from tests.unit.fake_cluster import FakeCluster, copied, data_mix, data_source, member_of, report, training_job
from tests.unit.test_reconcile_lifecycle import passes

BOUNDS = {"count": 3, "minCount": 1, "maxCount": 4}
QUEUE = {"queueing": {"backend": "Kueue", "queueName": "research", "priorityClassName": ""}}


class Kueue(FakeCluster):
    """Its Workloads wait until the test admits them. `serves` False: the cluster has no Kueue."""

    def __init__(self, serves: bool = True, trainers: Any = BOUNDS, scheduling: Manifest = QUEUE, **spec: Any) -> None:
        super().__init__(data_source(), data_mix(), training_job(scheduling=scheduling, trainers=trainers, **spec))
        self.serves = serves

    async def admissions(self, namespace: str, job_uid: str) -> Sequence[AdmissionView] | None:
        return [admission_view(w) for w in self.workloads()] if self.serves else None

    async def leave_queue(self, namespace: str, group: str, pod: str, uid: str = "") -> None:
        if not pod:
            self.objects.pop(("Workload", group), None)

    def workloads(self) -> list[Manifest]:
        return [o for (kind, _), o in self.objects.items() if kind == "Workload"]

    @property
    def workload(self) -> Manifest:
        (only,) = self.workloads()
        return only

    def admit(self, trainers: int) -> None:
        sets = [{"name": s["name"], "count": s["count"]} for s in self.workload["spec"]["podSets"]]
        sets[-1]["count"] = trainers
        self.workload["status"] = {"admission": {"podSetAssignments": sets}, "conditions": [holds("Admitted")]}

    def evict(self) -> None:
        """Its pods go as well, as Kueue deletes them."""
        self.workload["status"] = {"conditions": [holds("Evicted", "an urgent job needs the room")]}
        for pod in self.pods():
            self.vanish(pod)

    def members(self) -> list[str]:
        return sorted(map(member_of, self.pods()))


def holds(type_: str, message: str = "") -> Manifest:
    return {"type": type_, "status": "True", "reason": "Preempted", "message": message}


async def waiting(**spec: Any) -> Kueue:
    world = Kueue(**spec)
    await passes(world)
    return world


async def trains(world: Kueue, trainers: int) -> None:
    """Admitted with so many, and begun."""
    world.admit(trainers)
    await passes(world)
    world.run_all()
    world.report_now = report("Running", 10)
    await passes(world)


async def test_a_job_with_a_minimum_waits_with_a_workload_and_without_pods() -> None:
    world = await waiting()
    assert (world.state, world.pods()) == ("Queued", [])
    sets = {s["name"]: (s["count"], s.get("minCount")) for s in world.workload["spec"]["podSets"]}
    assert sets == {"coordinator": (1, None), "loader": (1, None), "trainer": (3, 1)}
    assert world.workload["spec"]["queueName"] == "research"


async def test_kueue_finds_room_by_what_each_set_asks_for_and_holds_nothing_else_to_be_its_owner() -> None:
    """A Workload with a controller and without pods is finished by Kueue; sidecars take room as long as their pod."""
    template = {"spec": {"nodeSelector": {"pool": "a"}, "runtimeClassName": "kata", "overhead": {"memory": "1Gi"}}}
    meta = (world := await waiting(trainers={**BOUNDS, "template": template})).workload["metadata"]
    assert meta["annotations"]["kueue.x-k8s.io/is-group-workload"] == "true"
    assert [(o["kind"], o["name"], o.get("controller")) for o in meta["ownerReferences"]] == [
        ("TrainingJob", "demo", None)
    ]
    spec = {s["name"]: s["template"]["spec"] for s in world.workload["spec"]["podSets"]}
    assert spec["trainer"].items() >= template["spec"].items() and "nodeSelector" not in spec["coordinator"]
    assert [c["restartPolicy"] for c in spec["trainer"]["initContainers"]] == ["Always"]


@pytest.mark.parametrize("admitted", [1, 2, 3])
async def test_as_many_trainers_are_created_as_kueue_admits_and_the_job_trains_with_those(admitted: int) -> None:
    world = await waiting()
    await trains(world, admitted)
    assert world.members() == ["coordinator", "loader-0", *(f"trainer-{n}" for n in range(admitted))]
    assert world.state == "Running" and world.job["status"]["trainers"]["desired"] == admitted
    assert {p["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] for p in world.pods()} == {
        str(2 + admitted)
    }
    assert {p["metadata"]["labels"][POD_GROUP] for p in world.pods()} == {world.workload["metadata"]["name"]}
    assert all(p["metadata"]["annotations"][DELETABLE] == "true" for p in world.pods())
    assert [e.message for e in world.events if e.reason == "Scaled"] == [
        f"the queue admits {admitted} of 3 trainers; the next start asks for all of them again"
    ] * (admitted < 3)
    assert world.condition("Degraded")["reason"] == ("CapacityLost" if admitted < 3 else "AsExpected")


async def test_a_job_that_trains_with_fewer_does_not_grow_in_its_group() -> None:
    world = await waiting()
    await trains(world, 2)
    world.tick(3600)
    await passes(world)
    assert world.sizes_asked == [] and len(world.pods()) == 4 and world.job["status"]["attempt"] == 0


async def test_an_evicted_job_asks_for_all_its_trainers_again_in_another_group_uncounted() -> None:
    world = await waiting()
    await trains(world, 1)
    former = world.workload["metadata"]["name"]
    world.report_now = None
    world.evict()
    await passes(world)
    assert world.state == "Queued" and world.pods() == [] and world.workload["metadata"]["name"] != former
    assert world.workload["spec"]["podSets"][-1]["count"] == 3
    cause = "Preempted: the queue has taken its place back: an urgent job needs the room"
    assert world.job["status"]["attempts"][0]["cause"] == cause
    await trains(world, 3)
    assert len(world.pods()) == 5 and world.job["status"]["restarts"]["counted"] == 0


@pytest.mark.parametrize("begun", [False, True])
async def test_a_deactivated_workload_holds_its_job_back_until_it_is_active_again(begun: bool) -> None:
    """Another Workload in its place would be admitted at once: `kueuectl stop workload` would have no effect."""
    world = await waiting()
    if begun:
        await trains(world, 3)
    stopped = world.workload
    stopped["spec"]["active"], world.report_now = False, None
    world.evict()
    world.edit("TrainingJob", "demo", trainers={**BOUNDS, "count": 2})
    await passes(world, 6)
    assert (world.state, world.pods(), world.workloads()) == ("Queued", [], [stopped])
    text = f"waits in its queue: Workload {stopped['metadata']['name']} is deactivated: set its spec.active to true"
    assert world.condition("Succeeded")["message"].startswith(text)
    stopped["spec"]["active"] = True
    await passes(world, 6)
    assert world.workload != stopped
    await trains(world, 2)
    assert len(world.pods()) == 4


async def test_a_job_whose_workload_is_deactivated_queues_again_when_it_is_suspended_and_resumed() -> None:
    world = await waiting()
    world.workload["spec"]["active"] = False
    world.evict()
    await passes(world)
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world)
    assert (world.state, world.workloads()) == ("Suspended", [])
    world.edit("TrainingJob", "demo", suspend=False)
    await passes(world)
    await trains(world, 3)
    assert len(world.pods()) == 5


async def test_the_pass_that_sees_an_eviction_leaves_the_size_of_the_next_start_open() -> None:
    world = await waiting()
    await trains(world, 1)
    world.workload["status"] = {"conditions": [holds("Evicted", "an urgent job needs the room")]}
    await passes(world, 1)
    status = world.job["status"]
    assert (status["attempt"], status["trainers"]["desired"], status.get("pinned")) == (1, 0, None)


async def test_a_group_whose_pods_have_all_ended_since_it_was_evicted_is_another_start() -> None:
    """Kueue keeps its dead pods, and gives their group no place again before they have successors."""
    world = await waiting()
    await trains(world, 2)
    world.workload["status"] = {"conditions": [holds("Evicted", "an urgent job needs the room")]}
    for pod in world.pods():
        world.end(pod, 143, disrupted=True)
        pod["metadata"] |= {"deletionTimestamp": stamp(world.now), "finalizers": ["kueue.x-k8s.io/managed"]}
    await passes(world, 1)
    status = world.job["status"]
    assert (status["attempt"], [e["name"] for e in status["incarnations"]]) == (1, ["all"])


async def test_a_job_that_is_evicted_while_it_saves_for_another_size_waits_for_no_checkpoint() -> None:
    world = await waiting()
    await trains(world, 3)
    world.edit("TrainingJob", "demo", trainers={**BOUNDS, "count": 2})
    await passes(world)
    assert world.condition("Progressing")["reason"] == "Scaling" and world.job["status"]["attempt"] == 0
    world.workload["status"] = {"conditions": [holds("Evicted")]}
    await passes(world, 6)
    assert world.job["status"]["attempts"][0]["rule"] == "Preempted"
    assert world.workload["spec"]["podSets"][-1]["count"] == 2 and world.pods() == []


async def test_while_a_pod_of_the_start_before_leaves_the_next_one_waits_in_the_queue_without_pods() -> None:
    world = await waiting()
    await trains(world, 2)
    world.report_now = None
    world.workload["status"] = {"conditions": [holds("Evicted", "an urgent job needs the room")]}
    late = world.pod("trainer-1") or {}
    late["metadata"]["finalizers"] = ["example.com/slow"]
    await passes(world, 6)
    names = {w["metadata"]["name"] for w in world.workloads()}
    assert world.pods() == [late] and not names <= {late["metadata"]["labels"][POD_GROUP]}
    assert world.state == "Queued"


async def test_the_admission_of_another_start_creates_no_pods() -> None:
    world = await waiting()
    other = copied(world.workload)
    other["metadata"]["name"] = other["metadata"]["name"][:-1] + "7"
    world.admit(3)
    other["status"], world.workload["status"] = world.workload["status"], {}
    world.objects = {("Workload", other["metadata"]["name"]): other, **world.objects}  # listed first
    await passes(world, 1)
    assert world.pods() == [] and world.state == "Queued"


async def test_a_workload_that_is_evicted_before_its_pods_exist_waits_for_its_next_admission() -> None:
    world = await waiting()
    world.admit(1)
    await passes(world, 1)
    world.evict()
    await passes(world)
    assert world.pods() == [] and world.state == "Queued" and world.job["status"]["trainers"]["desired"] == 3
    await trains(world, 2)
    assert world.members() == ["coordinator", "loader-0", "trainer-0", "trainer-1"]


async def test_a_job_that_is_scaled_while_it_waits_asks_for_the_new_number() -> None:
    world = await waiting()
    world.edit("TrainingJob", "demo", trainers={**BOUNDS, "count": 4})
    await passes(world, 6)
    assert world.workload["spec"]["podSets"][-1]["count"] == 4 and world.pods() == []


@pytest.mark.parametrize(("count", "trainers"), [(4, 3), (2, 0)])
async def test_a_job_that_is_scaled_after_its_admission_begins_with_what_was_admitted_unless_that_is_too_many(
    count: int, trainers: int
) -> None:
    world = await waiting()
    world.admit(3)
    world.edit("TrainingJob", "demo", trainers={**BOUNDS, "count": count})
    await passes(world, 6)
    assert len([m for m in world.members() if m.startswith("trainer")]) == trainers
    assert world.workload["spec"]["podSets"][-1]["count"] == (3 if trainers else count)


async def test_a_job_whose_workload_is_deleted_while_it_trains_gets_no_other_one_and_its_lost_pods_back() -> None:
    world = await waiting()
    await trains(world, 3)
    world.objects.pop(("Workload", world.workload["metadata"]["name"]))
    world.vanish(world.pod("trainer-1") or {})
    await passes(world)
    assert world.workloads() == [] and len(world.members()) == 5


async def test_a_job_in_its_queue_says_in_kueues_words_why_it_waits() -> None:
    world = await waiting()
    waits = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota for cpu"}
    world.workload["status"] = {"conditions": [waits]}
    await passes(world, 10)
    assert world.condition("Succeeded")["message"].startswith("waits in its queue: insufficient quota for cpu")


async def test_a_job_that_is_suspended_while_it_waits_leaves_no_workload_that_would_take_a_share() -> None:
    world = await waiting()
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world)
    assert (world.state, world.workloads()) == ("Suspended", [])


@pytest.mark.parametrize(("serves", "trainers"), [(False, BOUNDS), (True, {"count": 3})])
async def test_without_kueue_or_without_a_minimum_the_pods_are_created_at_once(serves: bool, trainers: Any) -> None:
    world = await waiting(serves=serves, trainers=trainers)
    assert len(world.pods()) == 5 and world.workloads() == []


@pytest.mark.parametrize(("trainers", "asked"), [(BOUNDS, 1), ({"count": 3}, 0)])
async def test_kueue_is_asked_only_about_jobs_that_it_may_admit_with_fewer_trainers(trainers: Any, asked: int) -> None:
    """A job without a minimum would cost a request in each pass, and its Workload is Kueue's own."""
    world, questions = await waiting(trainers=trainers), list[str]()

    async def admissions(namespace: str, job_uid: str) -> Sequence[AdmissionView]:
        questions.append(job_uid)
        return []

    world.admissions = admissions  # type: ignore[method-assign]
    await passes(world, 1)
    assert len(questions) == asked


OF_QUEUE = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "first"}
OF_PODS = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}


@pytest.mark.parametrize(
    ("queue", "pods", "ref"),
    [("first", "high", OF_QUEUE), ("first", "", OF_QUEUE), ("", "high", OF_PODS), ("", "", None)],
)
async def test_the_queues_own_class_decides_about_a_jobs_order_and_else_that_of_its_pods(
    queue: str, pods: str, ref: Manifest | None
) -> None:
    queueing = {**QUEUE["queueing"], "priorityClassName": queue}
    world = await waiting(scheduling={"queueing": queueing, "priorityClassName": pods})
    assert world.workload["spec"].get("priorityClassRef") == ref


def test_a_workload_names_its_class_as_each_version_spells_it() -> None:
    ref = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "urgent"}
    made = {"spec": {"queueName": "q", "priorityClassRef": ref}}
    assert in_version(made, "v1beta2", 7)["spec"] == {"queueName": "q", "priority": 7, "priorityClassRef": ref}
    assert in_version(made, "v1beta1", 7)["spec"] == {
        "queueName": "q", "priority": 7, "priorityClassName": "urgent",
        "priorityClassSource": "kueue.x-k8s.io/workloadpriorityclass",
    }  # fmt: skip
    assert in_version({"spec": {"queueName": "q"}}, "v1beta1", 0)["spec"] == {"queueName": "q"}


def test_only_workloads_without_pods_that_are_not_current_are_released() -> None:
    pod = PodView("a", "a", "trainer", 0, 0, group="old")
    found = [AdmissionView(name) for name in ("old", "elder", "now")]
    assert list(queueing.release_workloads(found, (pod,), "now")) == [LeaveQueue("elder")]
    assert list(queueing.release_workloads(None, (pod,))) == []
