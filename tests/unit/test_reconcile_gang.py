"""Which pods and other children exist next: what may be created, and what has to wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coxswain.wire import Fault, JobReport
from coxswain_operator.pod_decoding import child_view
from coxswain_operator.reconcile.actions import Create, CreatePod, Decision, Delete, RequeueAt, WriteStatus
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import ChildView, Manifest, PodView
from tests.unit.fake_cluster import report, report_text
from tests.unit.reconcile_scenes import COORDINATOR, GANG, LOADER, NOW, TRAINER, Scene, condition, ended
from tests.unit.test_reconcile_lifecycle import RESTART_JOB

RULES: dict[str, Any] = {"failurePolicy": {"rules": [RESTART_JOB]}}


def created(decision: Decision) -> dict[str, int]:
    """Members whose pods are created, with their numbers."""
    return {pod.member: pod.number for pod in decision.of(CreatePod)}


def children() -> tuple[ChildView, ...]:
    """As the first pass creates them."""
    made = (create.manifest for create in Scene().decide().of(Create))
    return tuple(child_view({**m, "metadata": {**m["metadata"], "uid": m["kind"]}}) for m in made)


@pytest.mark.parametrize("deleting", [False, True])
def test_no_pod_starts_while_a_config_map_of_other_content_is_there_and_it_is_deleted_once(deleting: bool) -> None:
    (name,) = [c.name for c in children() if c.name.startswith("demo-config")]
    old = {name: {"content": "old", "data": {}, "deleting": deleting}}
    decision = Scene(children=tuple(replace(c, **old.get(c.name, {})) for c in children())).decide()
    assert decision.of(Delete) == (() if deleting else (Delete("ConfigMap", name, "ConfigMap"),))
    assert decision.of(Create, CreatePod) == ()


def test_children_of_the_wanted_content_are_neither_deleted_nor_created_again() -> None:
    foreign = ChildView("Secret", "another", "x", "content")
    decision = Scene(children=(*children(), foreign)).decide()
    assert decision.of(Delete, Create) == ()
    assert len(created(decision)) == len(GANG)


@pytest.mark.parametrize(
    "scene",
    [
        Scene((COORDINATOR, ended(7)), seen="coordinator,trainer:1", spec=RULES),
        Scene((replace(COORDINATOR, phase="Pending"),), seen="coordinator", spec={"trainers": {"count": 3}}),
    ],
    ids=["after a failure", "for another size"],
)
def test_no_pod_is_created_in_the_pass_that_restarts_the_whole_job(scene: Scene) -> None:
    """The size of the next gang is not settled yet."""
    assert created(scene.decide()) == {}


def numbered(number: int, since: float, delay: int) -> Manifest:
    return {"name": "trainer-1", "number": number, "since": stamp(since), "delaySeconds": delay}


@pytest.mark.parametrize(
    ("since", "delay", "starts"),
    [(NOW - 5, 5, True), (NOW - 4, 5, False), (NOW, 1, False), (NOW, 0, True), (NOW + 10, 5, True)],
)
def test_a_pod_is_created_once_its_delay_is_over_or_the_clock_was_set_back(
    since: float, delay: int, starts: bool
) -> None:
    decision = Scene(GANG[:3], status={"incarnations": [numbered(1, since, delay)]}).decide()
    assert created(decision) == ({"trainer-1": 1} if starts else {})
    assert starts or RequeueAt(since + delay) in decision.of(RequeueAt)


HELD = replace(TRAINER, phase="Pending", deleting=True, group="old")


@pytest.mark.parametrize(
    ("pod", "free"),
    [
        (TRAINER, False),  # it still works
        (replace(TRAINER, deleting=True), False),
        (ended(1), True),
        (HELD, True),  # only Kueue keeps it
        (ended(0, replace(TRAINER, incarnation=1)), False),  # the current one, which left as it should
    ],
)
def test_a_pod_is_created_only_when_no_former_one_can_run(pod: PodView, free: bool) -> None:
    decision = Scene((*GANG[:3], pod), status={"incarnations": [numbered(1, NOW - 50, 0)]}).decide()
    assert created(decision) == ({"trainer-1": 1} if free else {})


def test_pods_of_older_numbers_and_of_members_that_the_gang_has_no_more_are_deleted() -> None:
    surplus = replace(TRAINER, name="demo-trainer-2-0", uid="x", index=2)
    going = replace(TRAINER, name="demo-trainer-1-1", uid="y", incarnation=1, deleting=True)
    current = replace(TRAINER, name="demo-trainer-1-2", uid="z", incarnation=2)
    scene = Scene((*GANG, surplus, going, current), status={"incarnations": [numbered(2, NOW - 50, 0)]})
    assert scene.decide().of(Delete) == (
        Delete("Pod", "demo-trainer-1-0", "t"), Delete("Pod", "demo-trainer-2-0", "x"),
    )  # fmt: skip


def test_a_pod_of_a_number_that_the_status_does_not_know_yet_is_deleted() -> None:
    """As after the restore of a backup: it is no member's pod, and keeps its member's own one from being created."""
    ahead = replace(TRAINER, name="demo-trainer-1-5", uid="z", incarnation=5)
    assert Scene((*GANG[:3], ahead)).decide().of(Delete) == (Delete("Pod", "demo-trainer-1-5", "z"),)


def test_only_a_pod_of_the_stored_number_that_stays_and_works_serves() -> None:
    for pod in (replace(TRAINER, incarnation=1), replace(TRAINER, deleting=True), replace(TRAINER, ready=False)):
        context = Scene((*GANG[:3], pod)).context()
        assert (context.not_serving, context.all_serving) == (("trainer-1",), False)
    assert Scene(GANG).context().all_serving


def test_a_job_that_is_not_valid_and_has_no_pods_is_not_said_to_have_all_of_them_ready() -> None:
    (write,) = Scene(spec={"mixRef": {"name": "none"}}).decide().of(WriteStatus)
    assert [c["status"] for c in write.status["conditions"] if c["type"] == "PodsReady"] == ["False"]


def test_a_job_that_is_not_valid_and_has_lost_a_pod_names_it_as_not_ready() -> None:
    scene = Scene(GANG[:3], seen="coordinator,loader:0,trainer:0-1", spec={"mixRef": {"name": "none"}})
    (write,) = scene.decide().of(WriteStatus)
    (ready,) = [c for c in write.status["conditions"] if c["type"] == "PodsReady"]
    assert (ready["status"], ready["message"]) == ("False", "not ready: trainer-1")


def test_an_old_pod_of_a_job_that_is_not_valid_is_deleted_and_its_working_pods_stay() -> None:
    old = replace(TRAINER, name="demo-trainer-1-0", uid="y")
    current = replace(TRAINER, name="demo-trainer-1-2", uid="z", incarnation=2)
    scene = Scene(
        (*GANG[:3], old, current),
        spec={"mixRef": {"name": "none"}},
        status={"incarnations": [numbered(2, NOW - 50, 0)]},
    )
    assert scene.decide().of(Delete) == (Delete("Pod", "demo-trainer-1-0", "y"),)


def test_a_job_says_what_its_coordinator_says_of_slow_trainers() -> None:
    (write,) = Scene(GANG, report("Running", 10, slow="trainer-1 is slow")).decide().of(WriteStatus)
    assert [c["message"] for c in write.status["conditions"] if c["type"] == "Progressing"] == ["trainer-1 is slow"]


READY = replace(COORDINATOR, node="n")
SILENT = replace(READY, ready=False)
GATED = replace(LOADER, phase="Pending", unscheduled_reason="SchedulingGated")
LEFT = report_text("Running", step=10)
PROGRESS = {"step": 1, "steps": 2, "tokens": "0", "tokensPerSecond": "0", "idlePercent": "0", "etaSeconds": 0,
            "percent": "0"}  # fmt: skip


@pytest.mark.parametrize(
    ("pods", "answer", "before", "progress", "state"),
    [
        ((), None, "", False, "Starting"),
        ((), None, "Running", True, "Restarting"),
        ((), report("Running"), "", False, "Starting"),
        ((READY,), report("Waiting"), "", False, "Starting"),
        ((READY,), report("Indexing"), "Starting", False, "Indexing"),
        ((READY,), report("Running"), "Starting", False, "Running"),
        ((READY, GATED), report("Running"), "Starting", False, "Running"),
        ((READY, GATED), report("Starting"), "Starting", False, "Queued"),
        ((READY,), report("Completed"), "Running", False, "Running"),  # its end is judged once it has left
        ((READY,), report("Completed"), "", False, "Starting"),
        ((READY,), None, "Running", False, "Running"),  # one answer is missing
        ((READY,), report("Starting"), "Running", False, "Starting"),
        ((SILENT,), None, "Running", False, "Starting"),
        ((ended(1, READY),), None, "Running", True, "Restarting"),
        ((ended(1, READY, message=LEFT),), None, "Starting", True, "Running"),
        ((ended(3, READY, message=report_text("Suspended")),), None, "Running", True, "Restarting"),
    ],
)
def test_the_state_of_a_gang_is_what_its_coordinator_says_or_said_a_moment_ago(
    pods: tuple[PodView, ...], answer: JobReport | None, before: str, progress: bool, state: str
) -> None:
    status: Manifest = {"conditions": [condition("Succeeded", "Unknown", reason=before)] if before else []}
    scene = Scene(pods, answer, status={**status, **({"progress": PROGRESS} if progress else {})})
    assert scene.context().state_of_gang == state


@pytest.mark.parametrize(
    ("pod", "step"),
    [
        (COORDINATOR, 50),
        (replace(COORDINATOR, message=LEFT), 50),  # a message of a container that ran before in this pod
        (ended(0, COORDINATOR, message=LEFT), 10),
        (ended(0, COORDINATOR, message="no report"), 50),
        (ended(0, COORDINATOR, message="\ud800"), 50),
    ],
)
def test_the_last_report_of_a_coordinator_that_has_left_is_in_its_termination_message(pod: PodView, step: int) -> None:
    found = Scene((pod,), report("Running", 50)).context().report
    assert found is not None and found.step == step


@pytest.mark.parametrize(
    ("retryable", "pods", "ends"),
    [
        (False, (COORDINATOR, LOADER), True),
        (True, (COORDINATOR, LOADER), False),
        (False, (COORDINATOR, LOADER, TRAINER), False),  # the cluster has taken a pod of each role
    ],
)
def test_a_child_that_the_cluster_will_never_take_ends_the_job_and_others_are_waited_for(
    retryable: bool, pods: tuple[PodView, ...], ends: bool
) -> None:
    scene = Scene(pods, rejection=Fault("Forbidden", "no", retryable=retryable))
    assert bool(scene.decide().of(Delete)) is ends
