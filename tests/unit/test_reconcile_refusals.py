"""Children that the cluster does not take: what ends the job, what is waited for, and what holds a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coxswain.errors import Refused, Retryable
from coxswain_operator.cluster import AlreadyExists, Denied
from coxswain_operator.controller import Controller
from coxswain_operator.reconcile.force_delete import MARGIN_SECONDS
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.refusals import fault_of
from coxswain_operator.views import Manifest
from tests.unit.fake_cluster import NAMESPACE, FakeCluster, data_mix, data_source, report, training_job, with_job
from tests.unit.test_reconcile_lifecycle import RESTART_JOB, running

DENIALS = {
    "QuotaExceeded": 'pods "p" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=8',
    "QuotaUnknown": 'pods "p" is forbidden: status unknown for quota: gpus, resources: pods',
    "LimitRangeExceeded": 'pods "p" is forbidden: minimum memory usage per Container is 1Gi, but request is 128Mi',
    "ServiceAccountMissing": 'pods "p" is forbidden: error looking up service account lab/default: not found',
    "AdmissionDenied": 'admission webhook "policy.example" denied the request: no team label',
    "PriorityClassMissing": 'pods "p" is forbidden: no PriorityClass with name high was found',
    "OperatorNotPermitted": 'pods is forbidden: User "system:serviceaccount:c:c" cannot create resource "pods" in API group ""',
    "PodSecurityViolated": 'pods "p" is forbidden: violates PodSecurity "restricted:latest": privileged',
    "NamespaceTerminating": 'pods "p" is forbidden: unable to create new content in namespace lab because it is being terminated',
    "Forbidden": "something new",
}  # fmt: skip


def refusing(
    world: FakeCluster, error: Exception, verb: str = "create", what: str = "demo-trainer"
) -> Callable[[], None]:
    """Refuses these calls until the answer is called."""

    def refuse(called: str, name: str) -> None:
        if called == verb and name.startswith(what):
            raise error

    def stop() -> None:
        world.before_call = lambda verb, what: None

    world.before_call = refuse
    return stop


@pytest.mark.parametrize(
    ("verb", "resource", "out"),
    [
        *((verb, resource, ": the job is in a queue of Kueue")
          for verb, resource in (("patch", "pods"), ("delete", "workloads"), ("create", "workloads"))),
        ("get", "workloadpriorityclasses", "; with watchNamespaces grant it `get` of priority classes besides"),
    ],
)  # fmt: skip
def test_an_operator_that_may_not_make_or_end_a_group_of_kueues_names_the_charts_value(
    verb: str, resource: str, out: str
) -> None:
    text = f'{resource} "x" is forbidden: User "u" cannot {verb} resource "{resource}" in API group ""'
    fault = fault_of("group demo-0", Denied("Forbidden", text))
    assert (fault.reason, fault.retryable) == ("OperatorNotPermitted", True)
    assert fault.message.endswith(f"set rbac.kueue=true in the operator's chart{out}")


PODS = ("demo-coordinator", "demo-loader", "demo-trainer")
SHOWN = 20  # passes, a second each, after which a running job's status has a new message


async def passes(world: FakeCluster, count: int = SHOWN, controller: Controller | None = None) -> Controller:
    """Of one operator, which remembers what was refused."""
    controller = controller or Controller(world, world, world.clock)
    for _ in range(count):
        await controller.pass_once(NAMESPACE, "demo")
        world.tick()
        world.reap()
    return controller


def message(world: FakeCluster) -> str:
    text: str = world.condition("Succeeded")["message"]
    return text


@pytest.mark.parametrize(("reason", "text"), DENIALS.items())
async def test_a_refusal_that_others_can_lift_is_named_and_waited_for(reason: str, text: str) -> None:
    world = await running()
    world.end(world.pod("trainer-1"), 143, disrupted=True)  # a drained trainer is being replaced
    lift = refusing(world, Denied("Forbidden", text))
    operator = await passes(world)
    assert world.state != "Failed"
    assert f"{reason}: Pod demo-trainer-1-1 is refused for now: {text}" in message(world)
    lift()
    await passes(world, controller=operator)
    assert "demo-trainer-1-1" in world.created and reason not in message(world)


async def test_an_operator_forgets_what_a_job_was_refused_once_the_job_is_gone() -> None:
    """Jobs that are refused and deleted, a thousand a day, for months."""
    world = await running()
    world.end(world.pod("trainer-1"), 143, disrupted=True)
    refusing(world, Denied("Forbidden", DENIALS["QuotaExceeded"]))
    operator = await passes(world)
    observed, before = await operator.observe(NAMESPACE, "demo"), world.job
    assert observed is not None and observed.rejection is not None
    await world.delete("TrainingJob", NAMESPACE, "demo")
    world.reap()
    assert await operator.reconcile_job(NAMESPACE, "demo") is None
    world.objects["TrainingJob", "demo"] = before  # with its uid, which no other job ever has
    again = await operator.observe(NAMESPACE, "demo")
    assert again is not None and again.rejection is None


NO_IMAGE = Refused("Invalid", 'Pod "p" is invalid: spec.containers[1].image: Required value')
OVER_LIMIT = Refused(
    "Invalid",
    'Pod "p" is invalid: spec.containers[0].resources.requests: Invalid value: "8Gi": must be less than or equal to memory '
    "limit of 4Gi",
)


@pytest.mark.parametrize("role", ["coordinator", "trainer"])
async def test_a_pod_that_no_cluster_takes_ends_a_job_that_never_ran_with_the_servers_words(role: str) -> None:
    world = with_job()
    refusing(world, NO_IMAGE, what=f"demo-{role}")
    await passes(world)
    assert (world.state, world.condition("Succeeded")["status"]) == ("Failed", "False")
    assert "spec.containers[1].image: Required value" in message(world)


@pytest.mark.parametrize("answer", [NO_IMAGE, OVER_LIMIT])
@pytest.mark.parametrize("whole", [False, True])
async def test_a_successor_that_the_cluster_takes_no_more_ends_no_job_that_has_run(
    whole: bool, answer: Refused
) -> None:
    """The cluster took the same pods before: a limit, a webhook or a rule that came later refuses them now."""
    world = await running(failurePolicy={"rules": [RESTART_JOB]})
    world.end(world.pod("trainer-1"), 7 if whole else 143, disrupted=not whole)
    lift = refusing(world, answer)
    operator = await passes(world)
    assert (world.state != "Failed", answer.message in message(world)) == (True, True)
    lift()
    await passes(world, controller=operator)
    assert "demo-trainer-1-1" in world.created and answer.message not in message(world)


async def test_a_running_job_goes_on_without_the_disruption_budget_that_no_cluster_takes() -> None:
    world = with_job()
    operator = await passes(world)
    world.run_all()
    world.report_now = report("Running", 1)
    refusing(world, Refused("Invalid", "no such field"), what="demo")
    await passes(world, controller=operator)
    assert world.state != "Failed" and "no such field" in message(world)


def test_a_request_above_a_limit_names_the_limit_range_that_may_have_set_it() -> None:
    fault = fault_of("Pod demo-trainer-1-1", OVER_LIMIT)
    assert (fault.reason, fault.retryable) == ("Invalid", False)
    assert fault.message.endswith("change the resources in the job's templates, or the namespace's LimitRange")
    assert fault_of("Pod demo-trainer-1-1", NO_IMAGE).message == NO_IMAGE.message


@pytest.mark.parametrize("loss", ["fails", "vanishes"])
async def test_a_webhook_that_does_not_answer_is_named_and_costs_no_event_of_the_loss(loss: str) -> None:
    """Creates answer 500. The pass that sees the loss stores it, so no later pass sees it again."""
    world = await running()
    if loss == "fails":
        world.end(world.pod("trainer-1"), 1)
    else:
        world.vanish(world.pod("trainer-1"))
    text = "Internal error occurred: failed calling webhook policy.example: connection refused"
    lift = refusing(world, Retryable(text))
    operator, failed = Controller(world, world, world.clock), 0
    for _ in range(SHOWN):
        try:
            await passes(world, 1, operator)
        except Retryable:
            failed += 1
            world.tick()
            world.reap()
    assert failed >= SHOWN - 2  # metric and alert count them
    assert f"ServerUnavailable: Pod demo-trainer-1-1: the API server fails: {text}; it is tried again" in message(world)
    lift()
    await passes(world, controller=operator)
    assert "demo-trainer-1-1" in world.created and "ServerUnavailable" not in message(world)
    reason = "WorkerRestarted" if loss == "fails" else "PodDisrupted"
    assert [e.reason for e in world.events].count(reason) == 1


async def test_a_right_to_delete_that_is_missing_is_a_condition_and_not_only_a_line_in_the_log() -> None:
    world = await running()
    world.end(world.pod("trainer-1"), 1)
    refusing(world, Denied("Forbidden", 'cannot delete resource "pods"'), "delete")
    await passes(world)
    assert "OperatorNotPermitted: Pod demo-trainer-1-0 is refused for now" in message(world)


@pytest.mark.parametrize("name", ["demo-config", "demo", "demo-token-"])
async def test_no_pod_is_created_while_one_of_the_objects_that_it_needs_is_refused(name: str) -> None:
    world = with_job()
    lift = refusing(world, Denied("Forbidden", "exceeded quota: objects"), what=name)
    operator = await passes(world)
    assert world.created == []
    lift()
    await passes(world, controller=operator)
    assert len(world.created) == 4


async def test_pods_are_replaced_while_the_disruption_budget_is_refused() -> None:
    world = with_job()
    operator = await passes(world)
    world.run_all()

    def refuse(verb: str, what: str) -> None:
        if (verb, what) == ("create", "demo"):
            raise Denied("Forbidden", "exceeded quota: objects")

    world.before_call = refuse
    world.report_now = report("Running", 1)
    await passes(world, controller=operator)
    assert ("PodDisruptionBudget", "demo") not in world.objects and "exceeded quota" in message(world)
    world.end(world.pod("trainer-1"), 1)
    await passes(world, 2, operator)
    assert "demo-trainer-1-1" in world.created


async def test_pods_that_hold_a_quota_are_all_deleted_although_their_successors_are_refused() -> None:
    world = await running(trainers={"count": 8})
    refusing(world, Denied("Forbidden", "exceeded quota: gpus"))
    for index in range(8):
        world.end(world.pod(f"trainer-{index}"), 143, disrupted=True)
    await passes(world, 2)
    assert sum(p["metadata"]["name"].startswith("demo-trainer") for p in world.deleted) == 8


# --- names that other objects hold --------------------------------------------------------------------------------


def held(kind: str, name: str, owner: Manifest | None, created: float = 900.0, **more: Any) -> Manifest:
    head: Manifest = {"name": name, "namespace": NAMESPACE, "labels": {}}
    head |= {"ownerReferences": [owner]} if owner else {}
    return {"apiVersion": "v1", "kind": kind, "metadata": head, **more}


BEFORE = {
    "apiVersion": "coxswain.dev/v1alpha1",
    "kind": "TrainingJob",
    "name": "demo",
    "uid": "before",
    "controller": True,
}
OTHER = {"kind": "Deployment", "name": "web", "uid": "else", "controller": True}


@pytest.mark.parametrize(("kind", "name"), [("Service", "demo"), ("NetworkPolicy", "demo")])
async def test_what_an_earlier_job_of_the_same_name_left_behind_is_replaced_before_pods_start(
    kind: str, name: str
) -> None:
    world = FakeCluster(data_source(), data_mix())
    left = world.put(held(kind, name, BEFORE, data={"job.json": "old"}))["metadata"]["uid"]
    world.tick(60)
    world.put(training_job())
    operator = await passes(world, 1)
    assert world.created == []
    await passes(world, 4, operator)
    assert world.objects[kind, name]["metadata"]["uid"] != left
    assert len(world.created) == 4


@pytest.mark.parametrize("owner", [OTHER, None])
async def test_an_object_of_others_that_holds_a_name_stays_and_the_job_says_what_it_waits_for(
    owner: Manifest | None,
) -> None:
    world = with_job()
    left = world.put(held("Service", "demo", owner))
    operator = await passes(world)
    belongs = "belongs to Deployment web" if owner else "belongs to no TrainingJob"
    assert f"NameTaken: Service demo {belongs}; delete it, or give the job another name" in message(world)
    assert world.created == [] and ("Service", "demo") in world.objects
    world.objects.pop(("Service", left["metadata"]["name"]))
    await passes(world, controller=operator)
    assert len(world.created) == 4 and "NameTaken" not in message(world)


async def test_a_child_whose_creation_had_no_answer_is_the_jobs_own_and_no_name_that_is_taken() -> None:
    """A request that is sent again finds what its first attempt has created."""
    world, lost = with_job(), ["demo"]
    create = world.create

    async def create_unheard(manifest: Manifest) -> Manifest:
        stored = await create(manifest)
        if manifest["kind"] == "Service" and lost:
            raise AlreadyExists(lost.pop())
        return stored

    world.create = create_unheard  # type: ignore[method-assign]
    operator = await passes(world, 1)
    job, uid = await operator.observe(NAMESPACE, "demo"), world.objects["Service", "demo"]["metadata"]["uid"]
    assert job is not None and job.holders == ()
    await passes(world, 6, operator)
    assert len(world.created) == 4 and world.objects["Service", "demo"]["metadata"]["uid"] == uid


async def test_an_object_with_the_jobs_label_and_another_owner_is_none_of_its_children() -> None:
    world = await running()
    theirs = held("ConfigMap", "notes", OTHER)
    theirs["metadata"]["labels"] = {"coxswain.dev/job-uid": world.job["metadata"]["uid"]}
    world.put(theirs)
    await passes(world, 4)
    assert ("ConfigMap", "notes") in world.objects


async def made_again(
    node: str, name: str = "demo-trainer-1-0", quota: int = 9, refusal: str = "QuotaExceeded"
) -> tuple[FakeCluster, Controller]:
    """A job was deleted and made again while the node of one of its pods was `node`: True, False or Unknown.

    `quota`: of pods in the namespace. `refusal`: why no more are taken.
    """
    world = await running()
    old = world.pod("trainer-1")
    for key in [k for k in world.objects if k[0] not in ("DataSource", "DataMix") and world.objects[k] is not old]:
        del world.objects[key]
    world.set_node("node-of-trainer-1", node)
    world.vanish(old)
    old["metadata"] |= {"name": name, "deletionTimestamp": stamp(world.now)}
    world.objects["Pod", name] = old

    def refuse(verb: str, what: str) -> None:
        if verb == "create" and what.startswith(PODS) and len(world.pods()) >= quota:
            raise Denied("Forbidden", DENIALS[refusal])

    world.before_call = refuse
    world.created.clear()
    world.report_now = None
    world.tick()
    world.put(training_job())
    return world, await passes(world)


async def test_a_pod_of_an_earlier_job_on_a_dead_node_is_deleted_by_force() -> None:
    world, operator = await made_again("False")
    assert "NameTaken: Pod demo-trainer-1-0 of an earlier TrainingJob demo is still there" in message(world)
    world.tick(MARGIN_SECONDS)
    await passes(world, 4, operator)
    assert "demo-trainer-1-0" in world.created


async def test_a_pod_of_an_earlier_job_on_a_dead_node_that_fills_a_quota_is_deleted_by_force() -> None:
    """It holds no name that the new job wants: it was its member's fourth pod."""
    world, operator = await made_again("False", "demo-trainer-1-3", quota=4)
    assert "QuotaExceeded" in message(world) and "demo-trainer-1-3" in [p["metadata"]["name"] for p in world.pods()]
    world.tick(MARGIN_SECONDS)
    await passes(world, 4, operator)
    assert len(world.created) == len(world.pods()) == 4


async def test_a_pod_of_an_earlier_job_that_is_in_no_ones_way_is_left_to_its_node() -> None:
    """Its name is free, and what refuses the new pods does not count pods."""
    world, operator = await made_again("False", "demo-trainer-1-3", quota=4, refusal="AdmissionDenied")
    world.tick(MARGIN_SECONDS)
    await passes(world, 4, operator)
    assert "AdmissionDenied" in message(world)
    assert "demo-trainer-1-3" in [p["metadata"]["name"] for p in world.pods()]


async def test_the_pods_of_a_younger_job_are_not_taken_for_leftovers() -> None:
    """This operator may still see a job that was deleted and made again meanwhile."""
    world = with_job()
    world.tick(60)
    younger = {**BEFORE, "uid": "younger"}
    labels = {"coxswain.dev/job": "demo", "coxswain.dev/job-uid": "younger", "coxswain.dev/role": "trainer"}
    labels |= {"coxswain.dev/index": "1", "coxswain.dev/incarnation": "0"}
    pod = held("Pod", "demo-trainer-1-0", younger, spec={}, status={"phase": "Running"})
    pod["metadata"]["labels"] = labels
    world.put(pod)
    world.put(held("Service", "demo", younger))
    await passes(world, 6)
    assert world.deleted == [] and world.objects["Service", "demo"]["metadata"]["ownerReferences"] == [younger]


@pytest.mark.parametrize(
    ("kind", "name", "deleted"), [("Service", "demo", []), ("Pod", "demo-coordinator-0", ["demo-trainer-7-0"])]
)
async def test_pods_of_an_earlier_job_are_left_to_the_cluster_while_no_name_of_a_pod_is_taken(
    kind: str, name: str, deleted: list[str]
) -> None:
    world = with_job()
    world.put(labelled(held("Pod", "demo-trainer-7-0", BEFORE, spec={}, status={"phase": "Running"}), "trainer"))
    world.tick(60)
    world.put(labelled(held(kind, name, OTHER, spec={}, status={}), "coordinator"))
    await passes(world, 4)
    assert [pod["metadata"]["name"] for pod in world.deleted] == deleted


def labelled(manifest: Manifest, role: str) -> Manifest:
    """With the labels of a pod of an earlier job."""
    labels = {"coxswain.dev/job-uid": "before", "coxswain.dev/role": role, "coxswain.dev/index": "7"}
    manifest["metadata"]["labels"] = {**labels, "coxswain.dev/incarnation": "0"}
    return manifest


async def test_a_pod_that_only_carries_the_jobs_labels_is_none_of_its_pods() -> None:
    world = await running()
    forged = held("Pod", "forged", None, spec={}, status={"phase": "Running", "podIP": "10.0.0.66"})
    forged["metadata"]["labels"] = {**world.pod("coordinator")["metadata"]["labels"]}
    world.vanish(world.pod("coordinator"))
    world.put(forged)
    assert "forged" not in [p.name for p in await world.pod_views(NAMESPACE, world.job["metadata"]["uid"])]
    await passes(world)
    assert "demo-coordinator-1" in world.created and world.deleted == []
