"""Which pods count as lost, and as what: one table of scenes, decided by one look at each."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coxswain.wire import Fault
from coxswain_operator.reconcile import member_failures
from coxswain_operator.reconcile.context import parse_fault
from coxswain_operator.reconcile.failure_policy import verdicts
from coxswain_operator.reconcile.member_failures import MemberFailure, detect_failure
from coxswain_operator.views import Manifest, PodView
from tests.unit.fake_cluster import report, report_text
from tests.unit.reconcile_scenes import COORDINATOR, LOADER, NOW, TRAINER, Scene, condition, ended

ROOT = Path(__file__).parents[2]


def test_a_termination_message_that_is_nested_without_end_is_no_fault():
    assert parse_fault('{"other": ' + "[" * 4000) is None


def failure(scene: Scene, member: str = "trainer-1") -> MemberFailure | None:
    return detect_failure(scene.context(), member)


def not_ready(seconds: float) -> Manifest:
    """A status of a job whose gang has not been whole for so long."""
    return {"conditions": [condition("PodsReady", "False", NOW - seconds)]}


FAILED = report("Failed", 10, fault=Fault("EmptySource", "no documents"))
RETRYABLE = report("Failed", 10, fault=Fault("StoreUnavailable", "503", retryable=True))
AT = 1200.0  # creation of a coordinator that replaced another
SUCCESSOR = replace(COORDINATOR, created=AT)
STARTING = replace(COORDINATOR, ready=False)
LEAVING = replace(COORDINATOR, deleting=True)

SCENES: dict[str, tuple[Scene, str]] = {
    "a pod that runs is no loss": (Scene((COORDINATOR, TRAINER)), ""),
    "a pod that was never there is none yet": (Scene((COORDINATOR,)), ""),
    "a pod that was there and is gone has vanished": (Scene((COORDINATOR,), seen="trainer:1"), "Vanished"),
    "a pod that is being deleted is lost": (Scene((COORDINATOR, replace(TRAINER, deleting=True))), "Deleted"),
    "a failed trainer under a working coordinator is its own loss": (Scene((COORDINATOR, ended(1))), "Error"),
    "a trainer that failed without an exit code is lost": (
        Scene((COORDINATOR, ended(None, reason="Evicted"))), "Evicted"),
    "a trainer that left with the announced fault has left as it should": (
        Scene((COORDINATOR, ended(2)), FAILED), ""),
    "a trainer that left with another code than the announced one is lost": (
        Scene((COORDINATOR, ended(9)), FAILED), "Error"),
    "a trainer that left with the code of a passing fault has left as it should": (
        Scene((COORDINATOR, ended(1)), RETRYABLE), ""),
    "a trainer's fault under a passing fault of the job is its own loss": (
        Scene((COORDINATOR, ended(2)), RETRYABLE), "Error"),
    "a failure without a fault announces no exit code": (
        Scene((COORDINATOR, ended(2)), report("Failed", 10)), "Error"),
    "a fault of a job that runs announces no exit code": (
        Scene((COORDINATOR, ended(2)), report("Running", 10, fault=Fault("Degraded", "x"))), "Error"),
    "a trainer that left with 0 under a working coordinator waits for it": (Scene((COORDINATOR, ended(0))), ""),
    "a trainer that left with 3 without a coordinator waits for one": (Scene((ended(3),)), ""),
    "a trainer that left before its coordinator was created is needed again": (
        Scene((SUCCESSOR, ended(3, finished=AT - 1))), "LeftEarly"),
    "a trainer that left in the second of its coordinator's creation is needed again": (
        Scene((SUCCESSOR, ended(3, finished=AT))), "LeftEarly"),
    "a trainer that left after its coordinator's creation left as asked": (
        Scene((SUCCESSOR, ended(3, finished=AT + 1))), ""),
    "a trainer whose node's clock is ahead is needed again once its new coordinator has waited for two minutes": (
        Scene((SUCCESSOR, ended(3, finished=9999.0)), report("Waiting"), status=not_ready(120)), "LeftEarly"),
    "a new coordinator is waited for until then": (
        Scene((SUCCESSOR, ended(3, finished=9999.0)), report("Waiting"), status=not_ready(119)), ""),
    "a trainer that left as its new coordinator announced stays away": (
        Scene((SUCCESSOR, ended(3, finished=9999.0)), report("Suspended"), status=not_ready(600)), ""),
    "a new coordinator that does not answer is not known to wait": (
        Scene((SUCCESSOR, ended(3, finished=9999.0)), status=not_ready(600)), ""),
    "a trainer that left with 0 under its own coordinator, which has let it go, is not needed again": (
        Scene((COORDINATOR, ended(0, finished=9999.0)), report("Running", size=1), status=not_ready(600)), ""),
    "nor is it while nothing says how many are wanted": (
        Scene((COORDINATOR, ended(0, finished=9999.0)), report("Running"), status=not_ready(600)), ""),
    "a trainer that left with 0 and is wanted for two minutes is needed again": (
        Scene((COORDINATOR, ended(0)), report("Running", size=2), status=not_ready(120)), "LeftEarly"),
    "it may come back until then": (
        Scene((COORDINATOR, ended(0)), report("Running", size=2), status=not_ready(119)), ""),
    "it is not wanted by a coordinator that ends": (
        Scene((COORDINATOR, ended(0)), report("Completed", size=2), status=not_ready(600)), ""),
    "a trainer whose end has no time is not judged by it": (Scene((SUCCESSOR, ended(3, finished=0.0))), ""),
    "a trainer that left with a coordinator that failed is needed again": (
        Scene((ended(1, COORDINATOR), ended(0))), "LeftEarly"),
    "a trainer that left with the exit code of its coordinator is needed again": (
        Scene((ended(9, COORDINATOR), ended(9))), "LeftEarly"),
    "a trainer that left with a coordinator that stopped has left as it should": (
        Scene((ended(3, COORDINATOR), ended(3))), ""),
    "a trainer that left before a coordinator that also left is not needed again": (
        Scene((ended(3, SUCCESSOR), ended(3, finished=AT - 1))), ""),
    "a trainer that gave up without a coordinator was abandoned": (Scene((ended(1),)), "LeftEarly"),
    "a trainer that gave up while its coordinator is being deleted was abandoned": (
        Scene((LEAVING, ended(1))), "LeftEarly"),
    "a trainer that gave up while its coordinator starts was abandoned": (Scene((STARTING, ended(1))), "LeftEarly"),
    "a trainer that fails otherwise while its coordinator starts is its own loss": (
        Scene((STARTING, ended(9))), "Error"),
    "a trainer that gave up in the last second after its coordinator's return was abandoned": (
        Scene((SUCCESSOR, ended(1, finished=AT + 120))), "LeftEarly"),
    "a trainer that gave up a second later is its own loss": (
        Scene((SUCCESSOR, ended(1, finished=AT + 121))), "Error"),
    "a trainer as old as its coordinator was never abandoned": (
        Scene((COORDINATOR, ended(1, finished=1001.0))), "Error"),
    "a trainer that gave up at an unknown time is its own loss": (
        Scene((SUCCESSOR, ended(1, finished=0.0))), "Error"),
    "a trainer that gave up before a coordinator of its age was ready was abandoned": (
        Scene((replace(COORDINATOR, ready_since=AT), ended(1, finished=AT))), "LeftEarly"),
    "a trainer that gave up once that coordinator was ready is its own loss": (
        Scene((replace(COORDINATOR, ready_since=AT), ended(1, finished=AT + 1))), "Error"),
    "a trainer that gave up at an unknown time beside that coordinator is its own loss": (
        Scene((replace(COORDINATOR, ready_since=AT), ended(1, finished=0.0))), "Error"),
}  # fmt: skip


@pytest.mark.parametrize(("scene", "reason"), SCENES.values(), ids=SCENES.keys())
def test_a_trainers_end_is_judged_with_its_coordinator(scene: Scene, reason: str) -> None:
    found = failure(scene)
    assert (found.reason if found else "") == reason


@pytest.mark.parametrize(("waited", "reason"), [(119, ""), (120, "LeftEarly")])
def test_a_loader_that_left_under_its_own_coordinator_is_needed_again_after_two_minutes(
    waited: int, reason: str
) -> None:
    """The job would wait for it without a word."""
    scene = Scene((COORDINATOR, ended(0, LOADER)), report("Running"), status=not_ready(waited))
    found = failure(scene, "loader-0")
    assert (found.reason if found else "") == reason


UNFINISHED = report_text("Completed", step=100, checkpoint_step=99)
REACHED = report_text("Completed", step=100, reason="StopReached")
RAISED: dict[str, Any] = {"stop": {"steps": 101}}
STOPPED = ended(3, COORDINATOR, message=report_text("Suspended", step=20))
TAKEN_BACK = {"conditions": [condition("Suspended", "False", 1001.0)]}
ENDS: dict[str, tuple[Scene, str, bool]] = {
    "a coordinator that left with 0 and saved is no loss": (
        Scene((ended(0, COORDINATOR, message=report_text("Completed", step=100)),)), "", False),
    "a coordinator that left with 0 and no report is no loss": (Scene((ended(0, COORDINATOR),)), "", False),
    "one that left with 0 and saved the step before the last is": (
        Scene((ended(0, COORDINATOR, message=UNFINISHED),)), "FinalCheckpointMissing", False),
    "one that reached its stop is no loss": (Scene((ended(0, COORDINATOR, message=REACHED),)), "", False),
    "one whose stop was raised by a step is": (
        Scene((ended(0, COORDINATOR, message=REACHED),), spec=RAISED), "StopRaised", False),
    "one that reports no number of steps is no loss": (
        Scene((ended(0, COORDINATOR, message=report_text("Completed", step=100, steps=0, reason="StopReached")),)),
        "", False),
    "one that ran out of data below a raised stop is no loss": (
        Scene((ended(0, COORDINATOR, message=report_text("Completed", reason="DataExhausted")),), spec=RAISED),
        "", False),
    "one that stopped for a suspension that was taken back is a planned stop": (
        Scene((STOPPED,), status=TAKEN_BACK), "Resumed", True),
    "one that finished behind such a suspension is no loss": (
        Scene((ended(0, COORDINATOR),), status=TAKEN_BACK), "", False),
    "one that stopped long after a suspension stopped unasked": (
        Scene((STOPPED,), status={"conditions": [condition("Suspended", "False", 1000.0)]}), "StoppedUnasked", False),
    "one whose pod is older than such a suspension, though the server's clock is ahead, is a planned stop": (
        Scene((replace(STOPPED, created=4600.0, lead=3600.0),), status=TAKEN_BACK), "Resumed", True),
    "one that stopped unasked is": (Scene((STOPPED,)), "StoppedUnasked", False),
    "one that stopped for another size is a planned stop": (
        Scene((STOPPED,), spec={"trainers": {"count": 3}}), "ScaleChanged", True),
    "one that finished is no planned stop, whatever the size": (
        Scene((ended(0, COORDINATOR, message=UNFINISHED),), spec={"trainers": {"count": 3}}),
        "FinalCheckpointMissing", False),
    "one that could not be reached for two minutes is lost like any other": (
        Scene((ended(1, COORDINATOR),)), "Error", False),
    "one that repeats its own announced code is lost": (Scene((ended(2, COORDINATOR),), FAILED), "Error", False),
}  # fmt: skip


@pytest.mark.parametrize(("scene", "reason", "planned"), ENDS.values(), ids=ENDS.keys())
def test_a_coordinators_end_is_judged_by_what_it_saved(scene: Scene, reason: str, planned: bool) -> None:
    found = failure(scene, "coordinator")
    assert ((found.reason, found.planned) if found else ("", False)) == (reason, planned)
    assert found is None or found.pod is scene.pods[0]


PENDING = replace(TRAINER, phase="Pending", ready=False, created=NOW - 60)
LIMIT: dict[str, Any] = {"startTimeoutSeconds": 60}
PULL: dict[str, Any] = {"failurePolicy": {"rules": [
    {"name": "other", "onExitCodes": {"operator": "In", "values": [9]}, "action": "Fail"},
    {"name": "pull", "onReasons": ["ImagePullBackOff"], "action": "RestartTrainer"},
]}}  # fmt: skip


@pytest.mark.parametrize(
    ("pod", "spec", "reason"),
    [
        (PENDING, LIMIT, "StartTimeout"),
        (replace(PENDING, created=NOW - 59), LIMIT, ""),
        (replace(PENDING, scheduled=NOW - 59), LIMIT, ""),
        (replace(PENDING, phase="Running"), LIMIT, ""),
        (replace(PENDING, unscheduled_reason="Unschedulable"), LIMIT, ""),
        (replace(PENDING, unscheduled_reason="SchedulingGated"), LIMIT, ""),  # it waits for its queue
        (replace(PENDING, waiting="ImagePullBackOff"), PULL, "ImagePullBackOff"),
        (replace(PENDING, waiting="CrashLoopBackOff"), PULL, ""),
        (PENDING, PULL, ""),
    ],
)
def test_a_pod_that_does_not_start_is_lost_at_its_time_out_or_by_a_rule(
    pod: PodView, spec: dict[str, Any], reason: str
) -> None:
    found = failure(Scene((COORDINATOR, pod), spec=spec))
    assert (found.reason if found else "") == reason


def test_a_loss_names_its_pod_its_exit_code_and_the_fault_in_its_message() -> None:
    said = '{"reason": "BadShard", "message": "shard 3 is torn"}'
    texts = {
        ended(9, message=said): "trainer-1: exit code 9 (BadShard: shard 3 is torn)",
        ended(9, reason="OOMKilled"): "trainer-1: exit code 9 (OOMKilled)",
        ended(128, reason="StartError", message='exec: "python": not found'): (
            'trainer-1: exit code 128 (StartError: exec: "python": not found)'
        ),
        ended(9, reason="Error", message="what a program writes is not shown"): "trainer-1: exit code 9 (Error)",
        ended(9): "trainer-1: exit code 9",
        ended(None): "trainer-1: no exit code",
    }
    for pod, text in texts.items():
        found = failure(Scene((COORDINATOR, pod)))
        assert found is not None and (found.message, found.pod, found.exit_code) == (text, pod, pod.exit_code)


@pytest.mark.parametrize(
    ("pod", "disrupted"),
    [
        (ended(137, reason="ContainerStatusUnknown"), True),
        (ended(255, reason="Unknown"), True),
        (ended(1, deleting=True), True),
        (ended(1, conditions=frozenset({("DisruptionTarget", "True")})), True),
        (ended(1, conditions=frozenset({("DisruptionTarget", "False")})), False),
        (replace(TRAINER, deleting=True), True),
        (ended(137, reason="OOMKilled"), False),
        (ended(1, reason="OutOfcpu"), False),  # it ran: its own program says so
        (ended(None, reason="OutOfcpu"), True),
    ],
)
def test_only_what_the_cluster_does_to_a_pod_is_a_disruption(pod: PodView, disrupted: bool) -> None:
    found = failure(Scene((COORDINATOR, pod)))
    assert found is not None and (found.disrupted, found.pod) == (disrupted, pod)


def test_a_planned_stop_is_counted_by_no_rule() -> None:
    rules = [{"name": "mine", "onExitCodes": {"operator": "In", "values": [3]}, "action": "RestartJob"}]
    scene = Scene((STOPPED,), spec={"trainers": {"count": 3}, "failurePolicy": {"rules": rules}})
    (verdict,) = verdicts(scene.context())
    assert (verdict.rule, verdict.counted, verdict.whole_job) == ("ScaleChanged", False, True)


def test_operations_names_every_reason_that_the_operator_gives_a_loss_and_a_rule_may_name() -> None:
    calls = [n for n in ast.walk(ast.parse(inspect.getsource(member_failures))) if isinstance(n, ast.Call)]
    made = [c for c in calls if getattr(c.func, "id", "") == "MemberFailure" and isinstance(c.args[1], ast.Constant)]
    given = {c.args[1].value for c in made if not any(k.arg == "planned" for k in c.keywords)}
    assert given >= {"Vanished", "LeftEarly"}
    rules = (ROOT / "docs/operations.md").read_text().partition("`onReasons` names reasons")[2].partition("\n\n")[0]
    others = {member_failures.START_TIMEOUT, "StopRaised", "FinalCheckpointMissing"}
    assert {reason for reason in given | others if f"`{reason}`" not in rules} == set()
