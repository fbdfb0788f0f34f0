"""Jobs whose pods or groups the server does not let go: said also where no status is written any more."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain.wire import Fault
from coxswain_operator.cluster import Denied
from coxswain_operator.controller import Controller
from coxswain_operator.reconcile import reconcile
from coxswain_operator.reconcile.actions import Decision, Delete, WriteStatus
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.refusals import UNAVAILABLE
from coxswain_operator.views import Event
from tests.unit.fake_cluster import NAMESPACE, report_text
from tests.unit.reconcile_scenes import GANG, NOW, Scene, condition
from tests.unit.test_reconcile_lifecycle import passes, running
from tests.unit.test_reconcile_refusals import refusing

NO_RIGHT = Denied("Forbidden", 'pods "p" is forbidden: User "c" cannot delete resource "pods" in API group ""')
REFUSED = Fault("OperatorNotPermitted", "Pod demo-trainer-1-0 is refused for now: cannot delete", retryable=True)
AWAY = Fault(UNAVAILABLE, "Pod demo-trainer-1-0: the API server fails", retryable=True)


OVER = {"conditions": [condition("Succeeded", "True", reason="Completed")], "completionTime": stamp(NOW - 600)}


def said(decision: Decision) -> list[Event]:
    return [e for e in decision.of(Event) if isinstance(e, Event) and e.reason == "FailedDelete"]


@pytest.mark.parametrize("state", ["Completed", "Failed"])
async def test_the_pod_of_an_ended_job_that_may_not_be_deleted_is_an_event_and_no_write_of_its_status(
    state: str,
) -> None:
    world = await running()
    code, text = (0, report_text("Completed", step=100)) if state == "Completed" else (2, "")
    world.end(world.pod("coordinator") or {}, code, text)
    refusing(world, NO_RIGHT, "delete")
    await passes(world, 1)
    assert world.state == state
    written = world.status_writes
    world.tick(15)
    controller, delays = Controller(world, world, world.clock), []
    for _ in range(4):
        delay = await controller.reconcile_job(NAMESPACE, "demo")
        delays.append(delay.most if delay else 0.0)
    words = [e.message for e in world.events if e.reason == "FailedDelete"]
    assert len(set(words)) == 1 and words[0].startswith("OperatorNotPermitted: Pod demo-")
    assert (world.status_writes, delays) == (written, [1.0, 10.0, 10.0, 10.0])


@pytest.mark.parametrize("fault", [REFUSED, AWAY])
@pytest.mark.parametrize(
    ("spec", "deleting"),
    [({}, False), ({"ttlSecondsAfterFinished": 60}, False), ({}, True)],
    ids=["kept", "due to be deleted", "being deleted"],
)
def test_what_keeps_an_ended_job_is_said_with_the_servers_words(
    fault: Fault, spec: dict[str, Any], deleting: bool
) -> None:
    observed = Scene(GANG, spec=spec, status=OVER, rejection=fault).observed
    if deleting:
        observed.job["metadata"]["deletionTimestamp"] = stamp(NOW)
    decision = reconcile(observed, NOW)
    assert said(decision) == [Event("FailedDelete", f"{fault.reason}: {fault.message}", warning=True)]
    assert decision.of(WriteStatus) == ()


def test_an_ended_job_that_was_refused_nothing_says_nothing() -> None:
    assert said(Scene(GANG, status=OVER).decide()) == []


@pytest.mark.parametrize("state", ["Completed", "Failed"])
async def test_an_edit_of_a_job_that_has_ended_is_observed_and_nothing_else_of_its_status_changes(state: str) -> None:
    world = await running()
    code, text = (0, report_text("Completed", step=100)) if state == "Completed" else (2, "")
    world.end(world.pod("coordinator") or {}, code, text)
    await passes(world)
    before, written = world.job["status"], world.status_writes
    world.edit("TrainingJob", "demo", ttlSecondsAfterFinished=9000)
    await passes(world)
    assert world.state == state and world.status_writes == written + 1
    newest = {"observedGeneration": world.job["metadata"]["generation"]}
    conditions = [{**condition, **newest} for condition in before["conditions"]]
    assert world.job["status"] == {**before, **newest, "conditions": conditions}


@pytest.mark.parametrize(
    ("observed", "newest", "deleting", "written"),
    [(3, 4, False, [4]), (3, 3, False, []), (3, 4, True, []), (0, 4, False, []), (5, 4, False, [])],
    ids=["edited", "seen", "being deleted", "of a release that observed none", "of a restored backup"],
)
def test_an_ended_job_writes_the_generation_that_it_observes_only_where_an_edit_is_new_to_it(
    observed: int, newest: int, deleting: bool, written: list[int]
) -> None:
    found = Scene((), status={**OVER, "observedGeneration": observed} if observed else OVER).observed
    found.job["metadata"] |= {"generation": newest, **({"deletionTimestamp": stamp(NOW)} if deleting else {})}
    writes = [w for w in reconcile(found, NOW).of(WriteStatus) if isinstance(w, WriteStatus)]
    assert [w.status["observedGeneration"] for w in writes] == written
    assert [w.status["updatedAt"] for w in writes] == [stamp(NOW)] * len(
        written
    )  # which the API server refuses to be empty


def test_a_suspended_job_whose_group_may_not_be_released_says_so() -> None:
    status = {"conditions": [condition("Suspended", "True")]}
    (write,) = Scene((), spec={"suspend": True}, status=status, rejection=REFUSED).decide().of(WriteStatus)
    assert isinstance(write, WriteStatus)
    text = next(c["message"] for c in write.status["conditions"] if c["type"] == "Succeeded")
    assert text.endswith(f"; OperatorNotPermitted: {REFUSED.message}")


def test_a_job_that_is_not_valid_names_the_old_pod_that_may_not_be_deleted() -> None:
    scene = Scene(GANG, seen="coordinator,loader:0,trainer:0-1", spec={"mixRef": {"name": "none"}}, rejection=REFUSED)
    (write,) = scene.decide().of(WriteStatus)
    assert isinstance(write, WriteStatus)
    text = next(c["message"] for c in write.status["conditions"] if c["type"] == "Succeeded")
    assert "DataMix" in text and text.endswith(f"; OperatorNotPermitted: {REFUSED.message}")


@pytest.mark.parametrize(("state", "holds", "seconds"), [("Failed", "False", 0), ("Completed", "True", 15)])
def test_pods_of_a_failed_job_are_deleted_at_once_and_those_of_a_complete_one_have_time_to_leave(
    state: str, holds: str, seconds: int
) -> None:
    status = {"conditions": [condition("Succeeded", holds, reason=state)], "completionTime": stamp(NOW)}
    for passed, deleted in ((seconds - 1, 0), (seconds, len(GANG))):
        decision = Scene(GANG, status=status, now=NOW + passed).decide()
        assert len([d for d in decision.of(Delete) if isinstance(d, Delete) and d.kind == "Pod"]) == deleted
