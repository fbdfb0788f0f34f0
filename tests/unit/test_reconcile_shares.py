"""The share of a queue that a job holds is given back in the first pass after which no pod of it is to come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coxswain.wire import Fault
from coxswain_operator.reconcile import reconcile
from coxswain_operator.reconcile.actions import LeaveQueue, Observed
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import AdmissionView, Manifest, PodView
from tests.unit.fake_cluster import report, report_text
from tests.unit.reconcile_scenes import COORDINATOR, GANG, NOW, TRAINER, Scene, condition, ended

QUEUE = {"queueing": {"backend": "Kueue", "queueName": "research"}}
CURRENT = "demo-u-0"  # the group of this start, and its Workload
OTHER = replace(TRAINER, name="demo-trainer-1-9", uid="o", incarnation=9, group="before", deleting=True)
INVALID = Fault("Invalid", "no such class")
SUSPENDED = {"conditions": [condition("Suspended", "True")]}


def of_queue(*pods: PodView) -> tuple[PodView, ...]:
    return tuple(replace(p, group=CURRENT, node="n") for p in pods)


def left_with(code: int, message: str = "") -> tuple[PodView, ...]:
    """All pods of a gang have ended; the coordinator with this code."""
    return of_queue(ended(code, COORDINATOR, message=message), *(ended(0, p) for p in GANG[1:]))


def released(observed: Observed) -> list[str]:
    """Groups and Workloads that the pass releases."""
    return [call.group for call in reconcile(observed, NOW).of(LeaveQueue) if isinstance(call, LeaveQueue)]


def state_of(scene: Scene) -> str:
    (write,) = (a for a in scene.decide().actions if hasattr(a, "status"))
    return next(c["reason"] for c in write.status["conditions"] if c["type"] == "Succeeded")


DONE = report_text("Completed", step=100, checkpoint_step=100)
PASSES = {
    "Suspending": Scene(left_with(3), spec={"suspend": True}),
    "Completed": Scene(left_with(0, DONE)),
    "Failed": Scene(left_with(2)),
}


@pytest.mark.parametrize("state", PASSES)
def test_the_pass_that_suspends_or_ends_a_job_whose_pods_have_all_ended_releases_their_group(state: str) -> None:
    assert state_of(PASSES[state]) == state
    assert released(PASSES[state].observed) == [CURRENT]


def test_the_group_of_a_start_that_is_replaced_pod_by_pod_stays() -> None:
    pods = of_queue(*(ended(137, p, deleting=True) for p in GANG))
    assert released(Scene(pods, report("Running", 10)).observed) == []


WAITING = {
    "Suspending": (Scene((OTHER,), spec={"suspend": True}), True),
    "Suspended": (Scene((), spec={"suspend": True}, status=SUSPENDED), True),
    "Failed": (Scene((), rejection=INVALID), True),
    "Queued": (Scene(()), False),
    "Starting": (Scene(GANG), False),  # no pod of the group is seen yet
}


@pytest.mark.parametrize("state", WAITING)
def test_a_workload_without_pods_stays_only_while_pods_of_its_start_are_to_come(state: str) -> None:
    """Kueue would admit it otherwise, and no pod would use the share."""
    scene, gone = WAITING[state]
    spec = {**scene.spec, "scheduling": QUEUE, "trainers": {"count": 2, "minCount": 1}}
    scene = replace(scene, spec=spec)
    observed = replace(scene.observed, admissions=(AdmissionView(CURRENT, trainers=2), AdmissionView("before")))
    others = [] if scene.pods == (OTHER,) else ["before"]
    ended_ = [call.group for call in reconcile(observed, NOW).of(LeaveQueue) if not getattr(call, "pod", "")]
    assert sorted(ended_) == sorted([CURRENT] * gone + others)


LEFT = replace(ended(1), name="demo-trainer-1-8", uid="x", group="of the job before")
OVER = {"Completed": "True", "Failed": "False"}


def passes_without_pods() -> dict[str, tuple[dict[str, Any], Manifest]]:
    """Status and metadata of jobs that get no pods any more."""
    ended_ = {
        state: {"conditions": [condition("Succeeded", status, reason=state)], "completionTime": stamp(NOW - 600)}
        for state, status in OVER.items()
    }
    deleting = {"deletionTimestamp": stamp(NOW)}
    return {
        **{state: (status, {}) for state, status in ended_.items()},
        "deleting": ({}, deleting),
        "ended and deleting": (ended_["Failed"], deleting),
    }


@pytest.mark.parametrize("which", passes_without_pods())
def test_a_job_that_has_ended_or_is_being_deleted_releases_its_groups_those_of_the_job_before_and_all_workloads(
    which: str,
) -> None:
    status, meta = passes_without_pods()[which]
    observed = Scene(left_with(2), status=status).observed
    observed.job["metadata"] |= meta
    observed = replace(observed, leftovers=(LEFT,), admissions=(AdmissionView("demo-u-1"), AdmissionView(CURRENT)))
    assert sorted(released(observed)) == [CURRENT, "demo-u-1", LEFT.group]


@pytest.mark.parametrize("suspend", [False, True])
def test_a_job_that_runs_or_is_suspended_releases_the_groups_of_the_job_before(suspend: bool) -> None:
    pods = () if suspend else of_queue(*GANG)
    observed = Scene(
        pods, report("Running", 10), spec={"suspend": suspend}, status=SUSPENDED if suspend else {}
    ).observed
    assert released(replace(observed, leftovers=(LEFT,))) == [LEFT.group]
