"""Suspension, resumption, the stop at a step, and what may change meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import UNSET

from coxswain.names import ANNOTATION_RETRY, ANNOTATION_STOP_AT
from coxswain.wire import Fault
from coxswain_operator.reconcile import suspend
from coxswain_operator.reconcile.actions import CheckpointAndStop, Decision, Delete, RequeueAt, WriteStatus
from coxswain_operator.reconcile.status import JobStatus, read_status
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import PodView
from tests.unit.fake_cluster import FakeCluster, report, report_text
from tests.unit.reconcile_scenes import COORDINATOR, GANG, NOW, TRAINER, Scene, condition, ended
from tests.unit.test_reconcile_lifecycle import passes, running


async def suspended(world: FakeCluster) -> None:
    """Asks for suspension, and plays the coordinator that obeys."""
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world, 2)
    for pod in list(world.pods()):
        world.end(pod, 3, report_text("Suspended", step=20))
    await passes(world)


async def test_suspend_asks_for_a_checkpoint_and_deletes_nothing_before_it() -> None:
    world = await running()
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world)
    assert world.calls and world.calls[0][1] == -1
    assert (world.state, world.deleted) == ("Suspending", [])
    assert world.condition("Suspended")["status"] == "Unknown"


PENDING = replace(COORDINATOR, phase="Pending", ready=False)


@pytest.mark.parametrize(
    ("pods", "saves"),
    [
        ((COORDINATOR,), True),  # pods of the local cluster have no node
        ((replace(PENDING, node="n"),), True),
        ((PENDING, TRAINER), True),
        ((PENDING, replace(TRAINER, phase="Pending")), False),
        ((ended(3, COORDINATOR), TRAINER), False),
        ((TRAINER,), False),
    ],
)
def test_pods_go_at_once_where_nothing_has_begun_or_no_coordinator_can_save(
    pods: tuple[PodView, ...], saves: bool
) -> None:
    decision = Scene(pods, spec={"suspend": True}).decide()
    assert (decision.of(CheckpointAndStop) != (), decision.of(Delete) == ()) == (saves, saves)


@pytest.mark.parametrize(
    ("status", "since", "until"),
    [("False", 1000.0, NOW + 600), ("Unknown", NOW - 599, NOW + 1), ("Unknown", NOW - 600, None)],
)
def test_the_ten_minutes_for_a_checkpoint_begin_with_the_request(
    status: str, since: float, until: float | None
) -> None:
    scene = Scene(
        (COORDINATOR,), spec={"suspend": True}, status={"conditions": [condition("Suspended", status, since)]}
    )
    decision = scene.decide()
    assert (decision.of(Delete) == ()) is (until is not None)
    assert until is None or RequeueAt(until) in decision.of(RequeueAt)


STOPPED = ended(3, COORDINATOR)


@pytest.mark.parametrize(
    ("stop", "saved", "coordinator", "suspended", "requested"),
    [
        ("20", 20, STOPPED, "False", True),
        ("20", 21, STOPPED, "False", True),
        ("20", 19, STOPPED, "False", False),
        ("20", None, STOPPED, "False", False),
        ("20", 20, COORDINATOR, "False", False),  # it has saved, and has still to leave
        ("20", 20, ended(1, COORDINATOR), "False", False),
        ("20", 20, None, "False", False),
        ("20", 20, None, "Unknown", True),
        ("20", 20, None, "True", True),
        ("20", 19, None, "True", False),
        ("", 20, STOPPED, "True", False),
        ("soon", 20, STOPPED, "True", False),
        ("9" * 5000, 20, STOPPED, "True", False),
    ],
)
def test_a_stop_at_a_step_suspends_once_that_step_is_saved_and_the_coordinator_has_left(
    stop: str, saved: int | None, coordinator: PodView | None, suspended: str, requested: bool
) -> None:
    status: dict[str, Any] = {"conditions": [condition("Suspended", suspended)]}
    if saved is not None:
        status["lastCheckpoint"] = {"step": saved, "uri": "file:///runs/demo", "time": ""}
    scene = Scene((coordinator,) if coordinator else (), status=status, annotations={ANNOTATION_STOP_AT: stop})
    assert suspend.is_requested(scene.context()) is requested


@pytest.mark.parametrize("answers", [True, False])
def test_only_a_coordinator_that_answers_is_asked_to_stop_at_a_step(answers: bool) -> None:
    scene = Scene((COORDINATOR,), report("Running", 10) if answers else None, annotations={ANNOTATION_STOP_AT: "20"})
    assert suspend.calls(scene.context()) == ((CheckpointAndStop("stop at step 20", 20),) if answers else ())


@pytest.mark.parametrize("digits", [15, 16, 25, 5000])
def test_a_stop_at_a_step_that_no_run_reaches_stops_nothing_and_disturbs_no_pass(digits: int) -> None:
    """Annotations have no schema: any text may stand there."""
    scene = Scene(GANG, report("Running", 10), annotations={ANNOTATION_STOP_AT: "9" * digits})
    decision = scene.decide()
    assert [call for call in decision.of(CheckpointAndStop) if call.at_step > 2**53] == []
    assert decision.of(Delete) == ()


async def test_a_suspended_job_has_no_pods_and_says_what_is_saved() -> None:
    world = await running()
    await suspended(world)
    assert (world.state, world.pods()) == ("Suspended", [])
    assert world.condition("Suspended")["message"] == "saved before step 20"
    assert world.job["status"]["ready"] == "0/0"


async def test_a_suspended_job_is_left_alone() -> None:
    world = await running()
    await suspended(world)
    writes = world.status_writes
    await passes(world, 30)
    assert (world.status_writes, world.pods()) == (writes, [])


async def test_a_resumed_job_gets_new_incarnations_of_the_same_attempt_uncounted() -> None:
    world = await running()
    await suspended(world)
    world.edit("TrainingJob", "demo", suspend=False)
    await passes(world)
    names = sorted(p["metadata"]["name"] for p in world.pods())
    assert names == ["demo-coordinator-1", "demo-loader-0-1", "demo-trainer-0-1", "demo-trainer-1-1"]
    assert world.job["status"]["attempt"] == 0
    assert world.job["status"]["restarts"] == {"counted": 0, "ignored": 0}
    assert "Resumed" in [h.reason for h in world.events]


async def test_a_trainer_too_many_is_not_created_after_a_smaller_resumption() -> None:
    world = await running()
    await suspended(world)
    world.edit("TrainingJob", "demo", suspend=False, trainers={"count": 1})
    await passes(world)
    assert sorted(p["metadata"]["name"] for p in world.pods()) == [
        "demo-coordinator-1",
        "demo-loader-0-1",
        "demo-trainer-0-1",
    ]


async def test_a_loss_during_suspension_is_neither_replaced_nor_counted() -> None:
    world = await running(failurePolicy={"maxRestarts": 0})
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world)
    world.end(world.pod("trainer-0"), 1)
    await passes(world)
    assert world.state == "Suspending"
    assert len(world.created) == 4


async def test_a_job_that_completes_while_it_is_being_suspended_is_completed() -> None:
    world = await running()
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world)
    world.end(world.pod("coordinator"), 0, report_text("Completed", step=100))
    await passes(world)
    assert world.state == "Completed"


async def test_a_stop_at_a_step_is_passed_on_and_then_binds_until_it_is_taken_away() -> None:
    world = await running()
    world.job["metadata"]["annotations"] = {ANNOTATION_STOP_AT: "20"}
    await passes(world)
    assert ("stop at step 20", 20) in world.calls
    for pod in list(world.pods()):
        world.end(pod, 3, report_text("Suspended", step=20))
    await passes(world, 10)
    assert (world.state, world.pods()) == ("Suspended", [])
    world.job["metadata"]["annotations"] = {}
    await passes(world)
    assert len(world.pods()) == 4


async def test_a_coordinator_that_stopped_unasked_is_started_again_without_counting() -> None:
    world = await running()
    for pod in list(world.pods()):
        world.end(pod, 3, report_text("Suspended", step=20))
    await passes(world, 6)
    assert len([p for p in world.pods() if p["status"]["phase"] == "Pending"]) == 4
    assert world.job["status"]["restarts"] == {"counted": 0, "ignored": 1}


async def test_the_time_of_a_suspension_does_not_count_against_the_deadline() -> None:
    world = await running(activeDeadlineSeconds=100)
    await suspended(world)
    world.tick(1000)
    world.edit("TrainingJob", "demo", suspend=False)
    await passes(world)
    world.run_all()
    assert world.state == "Restarting"
    world.tick(70)  # with the passes before the suspension fewer than 100 s
    await passes(world, 1)
    assert world.state == "Running"
    world.tick(20)
    await passes(world)
    assert world.condition("Progressing")["reason"] == "DeadlineExceeded"


async def test_a_raised_stop_goes_on_where_the_old_one_ended() -> None:
    world = await running()
    world.edit("TrainingJob", "demo", stop={"steps": 200})
    await passes(world)
    for pod in list(world.pods()):
        world.end(pod, 0, report_text("Completed", step=100, reason="StopReached"))
    await passes(world, 6)
    world.run_all()
    world.report_now = report("Running", 101, steps=200)
    await passes(world)
    assert (world.state, world.job["status"]["restarts"]["counted"]) == ("Running", 0)


async def test_a_coordinator_that_reached_a_stop_which_was_raised_ends_no_job_whose_other_pods_still_run() -> None:
    world = await running()
    world.edit("TrainingJob", "demo", stop={"steps": 200})
    await passes(world)
    world.end(world.pod("coordinator"), 0, report_text("Completed", step=100, reason="StopReached"))
    await passes(world, 1)
    assert (world.state, world.job["status"]["attempt"]) == ("Restarting", 1)


async def test_data_that_are_exhausted_end_a_job_whose_stop_was_raised_meanwhile() -> None:
    world = await running()
    world.edit("TrainingJob", "demo", stop={"steps": 200})
    await passes(world)
    world.end(world.pod("coordinator"), 0, report_text("Completed", step=100, reason="DataExhausted"))
    await passes(world)
    assert world.state == "Completed"


HELD = {"gang": {"releases": 3, "until": stamp(NOW + 500)}}


def written(decision: Decision) -> JobStatus:
    (write,) = decision.of(WriteStatus)
    return read_status({"status": write.status})


def test_a_suspended_job_forgets_that_it_was_half_placed() -> None:
    """What was released long ago does not hold the pods of the resumption back."""
    assert written(Scene((), spec={"suspend": True}, status=HELD).decide()).gang is UNSET


def test_a_retried_job_forgets_that_it_was_half_placed() -> None:
    failed = {**HELD, "conditions": [condition("Succeeded", "False", reason="Failed")], "completionTime": stamp(NOW)}
    assert written(Scene((), status=failed, annotations={ANNOTATION_RETRY: "1"}).decide()).gang is UNSET


def test_a_change_of_size_comes_before_a_stop_at_a_later_step() -> None:
    known = [condition("Succeeded", "Unknown", reason="Running"), condition("Progressing", "True")]
    scene = Scene(
        GANG, report("Running", 10), annotations={ANNOTATION_STOP_AT: "90"},
        spec={"trainers": {"count": 3, "minCount": 1, "maxCount": 8}}, status={"conditions": known},
    )  # fmt: skip
    assert scene.decide().of(CheckpointAndStop) == (CheckpointAndStop("scaled to 3 trainers"),)


def test_pods_that_may_not_be_deleted_are_named_while_their_leaving_is_waited_for() -> None:
    """Also why: the job would be Suspending without end, and without a word."""
    fault = Fault(
        "OperatorNotPermitted", "Pod demo-trainer-1-0 is refused for now: cannot delete resource", retryable=True
    )
    status = {"conditions": [condition("Suspended", "Unknown", NOW - suspend.DEADLINE_SECONDS)]}
    scene = Scene(GANG, seen="coordinator,loader:0,trainer:0-1", spec={"suspend": True}, status=status, rejection=fault)
    (write,) = scene.decide().of(WriteStatus)
    assert isinstance(write, WriteStatus)
    said = next(c["message"] for c in write.status["conditions"] if c["type"] == "Succeeded")
    assert said.startswith("waits for the pods to leave; OperatorNotPermitted: Pod demo-trainer-1-0")
