"""Groups of pods: each API gets its object and its pods' marks, and a start has one group of its own."""

from __future__ import annotations

from typing import Any, cast

import pytest
from msgspec.structs import replace

from coxswain.api.resolve import resolve
from coxswain.config import JobConfig
from coxswain.errors import Refused
from coxswain.names import LABEL_INCARNATION, LABEL_INDEX
from coxswain_operator.children import PodPlan, children, gangs, kinds
from coxswain_operator.children.gangs import BACKENDS, CHOICES
from coxswain_operator.controller import Controller
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.discovery import find_gang_backend
from coxswain_operator.reconcile.completion import LEAVE_SECONDS
from coxswain_operator.settings import Settings
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
from tests.unit.test_reconcile_lifecycle import KEYS

UID = "4b1d9f3e-0000-4000-8000-000000000000"
GROUP = "demo-4b1d9f3e-2"  # of start 2


def job_of(**spec: Any) -> tuple[Manifest, JobConfig]:
    job = training_job(**{"trainers": {"count": 4, "minCount": 3}, **spec})
    job["metadata"] |= {"uid": UID, "labels": {"volcano.sh/queue-name": "research"}}
    config = resolve(job, [data_source()], [data_mix()], [], UID)
    assert isinstance(config, JobConfig), config
    return job, config


def made(backend: str, **spec: Any) -> tuple[Manifest, Manifest]:
    """The group and the pod of a trainer."""
    job, config = job_of(**spec)
    settings = Settings(gang_backend=backend)
    (group,) = gangs.group(job, config, settings, 2)
    return group, PodPlan(job, config, settings, 0, 2).pod("trainer-1", 2)


@pytest.mark.parametrize(
    ("backend", "version", "kind", "spec"),
    [
        ("Coscheduling", "scheduling.x-k8s.io/v1alpha1", "PodGroup", {"minMember": 5}),
        (
            "Volcano", "scheduling.volcano.sh/v1beta1", "PodGroup",
            {
                "minMember": 5, "minTaskMember": {"coordinator": 1, "loader": 1, "trainer": 3}, "queue": "research",
                "priorityClassName": "high",
            },
        ),
        (
            "NativeWorkload", "scheduling.k8s.io/v1alpha1", "Workload",
            {
                "controllerRef": {"apiGroup": "coxswain.dev", "kind": "TrainingJob", "name": "demo"},
                "podGroups": [{"name": "gang", "policy": {"gang": {"minCount": 5}}}],
            },
        ),
        (
            "NativePodGroup", "scheduling.k8s.io/v1beta1", "PodGroup",
            {"schedulingPolicy": {"gang": {"minCount": 5}}, "priorityClassName": "high"},
        ),
    ],
)  # fmt: skip
def test_a_group_asks_for_coordinator_loaders_and_the_fewest_trainers(
    backend: str, version: str, kind: str, spec: Manifest
) -> None:
    group, _ = made(backend, scheduling={"priorityClassName": "high"})
    assert (group["apiVersion"], group["kind"], group["spec"]) == (version, kind, spec)
    assert (group["metadata"]["name"], group["metadata"]["namespace"]) == (GROUP, NAMESPACE)
    (owner,) = group["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (UID, True)
    assert "priorityClassName" not in made(backend)[0]["spec"]


def test_pods_name_their_group_as_its_scheduler_reads_it() -> None:
    pods = {backend: made(backend)[1] for backend in BACKENDS}
    assert pods["Coscheduling"]["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == GROUP
    assert pods["Volcano"]["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == GROUP
    assert pods["Volcano"]["metadata"]["annotations"]["volcano.sh/task-spec"] == "trainer"
    assert pods["NativeWorkload"]["spec"]["workloadRef"] == {"name": GROUP, "podGroup": "gang"}
    assert pods["NativePodGroup"]["spec"]["schedulingGroup"] == {"podGroupName": GROUP}
    schedulers = {backend: pod["spec"].get("schedulerName") for backend, pod in pods.items()}
    assert schedulers == {"Coscheduling": None, "Volcano": "volcano", "NativeWorkload": None, "NativePodGroup": None}


@pytest.mark.parametrize(
    ("member", "role"), [("coordinator", "coordinator"), ("loader-0", "loader"), ("trainer-0", "trainer")]
)
def test_a_pod_of_volcanos_names_its_role_by_which_the_group_counts_it(member: str, role: str) -> None:
    job, config = job_of()
    pod = PodPlan(job, config, Settings(gang_backend="Volcano"), 0, 2).pod(member, 2)
    assert pod["metadata"]["annotations"]["volcano.sh/task-spec"] == role


def test_a_scheduler_that_the_installation_names_goes_before_the_backends_own() -> None:
    job, config = job_of()
    settings = Settings(gang_backend="Volcano", gang_scheduler="second")
    assert PodPlan(job, config, settings, 0, 2).pod("trainer-0", 2)["spec"]["schedulerName"] == "second"


def test_a_start_with_fewer_trainers_than_the_minimum_asks_for_no_more_than_it_has() -> None:
    """Its scheduler would wait for pods that never come."""
    job, config = job_of()
    config = replace(config, trainers=1, min_trainers=3)
    (group,) = gangs.group(job, config, Settings(gang_backend="Coscheduling"), 2)
    assert group["spec"] == {"minMember": 1 + config.loaders + 1}


def test_the_choice_auto_prefers_kubernetes_own_groups_and_of_these_the_newer() -> None:
    assert gangs.CHOICES["Auto"][:2] == gangs.CHOICES["Native"] == ("NativePodGroup", "NativeWorkload")
    assert set(gangs.CHOICES["Auto"]) == set(BACKENDS)


def test_an_installation_may_name_the_scheduler_and_a_template_another() -> None:
    job, config = job_of()
    settings = Settings(gang_backend="Coscheduling", gang_scheduler="second")
    assert PodPlan(job, config, settings, 0, 2).pod("loader-0", 2)["spec"]["schedulerName"] == "second"
    job["spec"]["trainers"]["template"] = {"spec": {"schedulerName": "third"}}
    assert PodPlan(job, config, settings, 0, 2).pod("trainer-0", 2)["spec"]["schedulerName"] == "third"


def test_without_a_backend_there_is_no_group_and_pods_are_as_before() -> None:
    job, config = job_of()
    assert gangs.group(job, config, Settings(), 2) == ()
    pod = PodPlan(job, config, Settings(), 0, 2).pod("trainer-0", 2)
    marks = {*pod["metadata"]["labels"], *pod["metadata"]["annotations"], *pod["spec"]}
    assert not [m for m in marks if "scheduling" in m or "scheduler" in m or "volcano" in m or "workload" in m]
    assert kinds(Settings(gang_backend="NativeWorkload")) == (*kinds(Settings()), "Workload")


def test_a_group_is_made_before_the_pods_that_name_it() -> None:
    job, config = job_of()
    found = [m["kind"] for m in children(job, config, Settings(gang_backend="Volcano"), "t", 0, start=2)]
    assert found[-1] == "PodDisruptionBudget" and "PodGroup" in found


@pytest.mark.parametrize("placed", [False, True])
async def test_another_queue_in_the_jobs_label_makes_another_group_only_while_no_pod_has_a_node(placed: bool) -> None:
    world = with_job()
    controller = Controller(world, world, world.clock, settings=Settings(gang_backend="Volcano"), keys=KEYS)

    async def passes() -> Manifest:
        for _ in range(4):
            await controller.pass_once(NAMESPACE, "demo")
            world.tick()
        (group,) = (o for (kind, _), o in world.objects.items() if kind == "PodGroup")
        return group

    before = await passes()
    if placed:
        world.run_all()
        world.report_now = report()
    world.job["metadata"]["labels"] = {"volcano.sh/queue-name": "other"}
    world.job["metadata"]["resourceVersion"] = str(next(world.versions))
    after = await passes()
    assert (after["metadata"]["uid"] == before["metadata"]["uid"]) == placed
    assert after["spec"].get("queue") == (None if placed else "other")
    assert world.deleted == []


async def test_each_start_has_a_group_of_its_own_and_the_group_of_the_start_before_goes() -> None:
    world = with_job(trainers={"count": 2, "minCount": 1, "maxCount": 4})
    controller = Controller(world, world, world.clock, Settings(gang_backend="Coscheduling"))

    async def passes(count: int) -> list[tuple[str, int]]:
        for _ in range(count):
            await controller.pass_once(NAMESPACE, "demo")
            world.tick()
            world.reap()
        found = [o for (kind, _), o in world.objects.items() if kind == "PodGroup"]
        named = {p["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] for p in world.pods()}
        assert named == {o["metadata"]["name"] for o in found}
        return [(o["metadata"]["name"][-1], o["spec"]["minMember"]) for o in found]

    assert await passes(4) == [("0", 3)]
    world.edit("TrainingJob", "demo", trainers={"count": 4, "minCount": 4, "maxCount": 4})
    assert await passes(6) == [("1", 6)]


@pytest.mark.parametrize(("backend", "state"), [("Volcano", "Queued"), ("", "Unschedulable")])
async def test_a_job_that_its_scheduler_has_not_placed_is_queued_and_its_time_stands(backend: str, state: str) -> None:
    world = with_job(activeDeadlineSeconds=3600)
    controller = Controller(world, world, world.clock, Settings(gang_backend=backend))

    async def passes(count: int) -> None:
        for _ in range(count):
            await controller.pass_once(NAMESPACE, "demo")
            world.tick()

    await passes(3)
    for pod in world.pods()[1:]:
        world.unschedulable(pod)
    await passes(2)
    assert world.state == state
    world.tick(10_000)
    await passes(2)
    assert world.state == (state if backend else "Failed")
    if backend:
        world.run_all()
        await passes(2)
        assert (world.state, world.job["status"]["activeSeconds"] < 10) == ("Starting", True)


NONE, LABELS = Settings(), Settings(gang_backend="Coscheduling", gang_scheduler="second")
OTHER = Settings(gang_backend="Volcano", gang_scheduler="third")


async def passes_of(world: FakeCluster, settings: Settings, count: int = 4) -> None:
    controller = Controller(world, world, world.clock, settings, keys=KEYS)
    for _ in range(count):
        await controller.pass_once(NAMESPACE, "demo")
        world.tick()
        world.reap()


async def placed(settings: Settings) -> FakeCluster:
    """A job that trains, begun by an operator of these settings."""
    world = with_job()
    await passes_of(world, settings)
    world.run_all()
    world.report_now = report("Running", 10)
    await passes_of(world, settings)
    return world


def marks(pod: Manifest) -> tuple[Any, ...]:
    """Of a pod's gang. The number of its start is in the group's name."""
    meta, spec = pod["metadata"], pod["spec"]
    kept = {k: v for k, v in meta["labels"].items() if k not in (LABEL_INCARNATION, LABEL_INDEX)}
    return kept, meta["annotations"], spec.get("schedulerName"), spec.get("schedulingGroup"), spec.get("workloadRef")


@pytest.mark.parametrize(("before", "after"), [(NONE, LABELS), (LABELS, NONE), (LABELS, OTHER), (OTHER, LABELS)])
async def test_a_lost_pods_successor_is_placed_as_its_peers_whatever_the_installation_has_chosen_since(
    before: Settings, after: Settings
) -> None:
    """Alone in a group of the whole gang it would wait for ever."""
    world = await placed(before)
    groups = {key for key in world.objects if key[0] == "PodGroup"}
    world.end(world.pod("trainer-1"), 143, disrupted=True)
    await passes_of(world, after)
    successor = world.pod("trainer-1")
    assert successor["metadata"]["name"] == "demo-trainer-1-1"
    assert marks(successor) == marks(world.pod("trainer-0"))
    assert {key for key in world.objects if key[0] == "PodGroup"} == groups


@pytest.mark.parametrize(("before", "after", "state"), [(LABELS, NONE, "Queued"), (NONE, LABELS, "Unschedulable")])
async def test_pods_wait_in_the_queue_of_the_scheduler_that_they_were_made_for(
    before: Settings, after: Settings, state: str
) -> None:
    world = with_job()
    await passes_of(world, before)
    for pod in world.pods():
        world.unschedulable(pod)
    await passes_of(world, after)
    assert world.state == state


async def test_the_next_attempt_is_placed_as_the_installation_has_chosen_since() -> None:
    world = await placed(NONE)
    world.edit("TrainingJob", "demo", suspend=True)
    await passes_of(world, LABELS)
    for pod in world.pods():
        world.end(pod, 3)
    await passes_of(world, LABELS)
    world.edit("TrainingJob", "demo", suspend=False)
    await passes_of(world, LABELS, 6)
    assert {p["spec"]["schedulerName"] for p in world.pods()} == {"second"}
    assert [key[0] for key in world.objects].count("PodGroup") == 1


async def test_a_completed_job_keeps_its_group_and_its_budget_as_long_as_pods_have_grace() -> None:
    world = await placed(LABELS)
    world.report_now = None
    world.end(world.pod("coordinator"), 0, report_text("Completed", step=100))
    await passes_of(world, LABELS, 3)
    assert world.state == "Completed"
    assert {"PodGroup", "PodDisruptionBudget"} <= {key[0] for key in world.objects}


@pytest.mark.parametrize("end", ["Suspended", "Completed", "Failed"])
async def test_a_job_without_pods_leaves_no_group_in_its_schedulers_queue(end: str) -> None:
    world = await placed(LABELS)
    world.report_now = None
    world.edit("TrainingJob", "demo", suspend=end == "Suspended")
    code = {"Suspended": 3, "Completed": 0, "Failed": 2}[end]
    world.end(world.pod("coordinator"), code, report_text(end, step=100))
    await passes_of(world, LABELS, 1)
    assert "PodGroup" in [key[0] for key in world.objects]  # other pods are still there
    world.tick(LEAVE_SECONDS)
    await passes_of(world, LABELS, 8)
    assert world.state == end
    assert {"PodGroup", "PodDisruptionBudget"}.isdisjoint(key[0] for key in world.objects)


@pytest.mark.parametrize(("before", "after"), [(NONE, LABELS), (LABELS, LABELS), (LABELS, NONE), (NONE, NONE)])
async def test_a_job_of_an_earlier_release_which_pinned_no_scheduler_is_known_by_its_group(
    before: Settings, after: Settings
) -> None:
    """Where the installation has none any more, successors are as that release made them."""
    world = await placed(before)
    del world.job["status"]["pinned"]["gangScheduling"]
    world.end(world.pod("trainer-1"), 143, disrupted=True)
    await passes_of(world, after)
    alike = marks(world.pod("trainer-1")) == marks(world.pod("trainer-0"))
    assert alike is (before == NONE or after == before)
    kept = world.job["status"]["pinned"]["gangScheduling"]
    assert kept["backend"] == (before.gang_backend if after == before else "")


async def test_a_backend_that_this_release_does_not_know_is_the_installations() -> None:
    world = await placed(LABELS)
    world.job["status"]["pinned"]["gangScheduling"]["backend"] = "OfALaterRelease"
    world.end(world.pod("trainer-1"), 143, disrupted=True)
    await passes_of(world, LABELS)
    assert marks(world.pod("trainer-1")) == marks(world.pod("trainer-0"))


class Served:
    """An API server that serves some groups' versions."""

    def __init__(self, *versions: str) -> None:
        self.versions = versions

    async def call(self, method: str, path: str) -> Manifest:
        if path.removeprefix("/apis/") not in self.versions:
            raise NotFound("NotFound", path)
        return {"resources": [{"name": "podgroups"}, {"name": "workloads"}]}


BETA, ALPHA, VOLCANO, COSCHEDULING = (BACKENDS[name].api_version for name in CHOICES["Auto"])


@pytest.mark.parametrize(
    ("choice", "versions", "backend"),
    [
        ("None", (BETA, ALPHA, VOLCANO, COSCHEDULING), ""),
        ("Auto", (BETA, ALPHA, VOLCANO, COSCHEDULING), "NativePodGroup"),
        ("Auto", (ALPHA, VOLCANO), "NativeWorkload"),
        ("Auto", (COSCHEDULING, VOLCANO), "Volcano"),
        ("Auto", (COSCHEDULING,), "Coscheduling"),
        ("Auto", (), ""),
        ("Native", (ALPHA, BETA), "NativePodGroup"),
        ("Coscheduling", (ALPHA, COSCHEDULING), "Coscheduling"),
    ],
)
async def test_the_backend_is_the_first_of_the_choice_that_the_server_has(
    choice: str, versions: tuple[str, ...], backend: str
) -> None:
    assert await find_gang_backend(cast("Connection", Served(*versions)), choice) == backend


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ("Yunikorn", "--gang-scheduling: Yunikorn is none of None, Auto, Native, Volcano, Coscheduling"),
        ("Volcano", "the API server serves no PodGroup of scheduling.volcano.sh/v1beta1; install the scheduler"),
        ("Native", "PodGroup of scheduling.k8s.io/v1beta1 or Workload of scheduling.k8s.io/v1alpha1"),
    ],
)
async def test_a_choice_that_the_server_cannot_satisfy_is_refused_with_the_way_out(choice: str, text: str) -> None:
    with pytest.raises(Refused) as refused:
        await find_gang_backend(cast("Connection", Served(COSCHEDULING)), choice)
    assert text in refused.value.message
