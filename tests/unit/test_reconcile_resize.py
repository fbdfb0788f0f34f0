"""Another number of trainers: asked for by a user, or forced by missing room."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from coxswain.wire import JobReport
from coxswain_operator.reconcile import resize
from coxswain_operator.reconcile.actions import CheckpointAndStop, Sizing, WriteStatus
from coxswain_operator.reconcile.resize import Resize, plan_resize
from coxswain_operator.views import Event, Manifest, PodView
from tests.unit.fake_cluster import FakeCluster, live, member_of, report, report_text, with_job
from tests.unit.reconcile_scenes import COORDINATOR, GANG, NOW, TRAINER, Scene, condition, ended
from tests.unit.test_reconcile_lifecycle import passes, running

BOUNDS = {"minCount": 1, "maxCount": 8}


def trainers(count: int) -> Manifest:
    return {"count": count, **BOUNDS}


async def running_scalable(**spec: Any) -> FakeCluster:
    return await running(**{"trainers": trainers(2), **spec})


def scale(world: FakeCluster, count: int) -> None:
    """As `kubectl scale`."""
    world.edit("TrainingJob", "demo", trainers=trainers(count))


def leave(world: FakeCluster) -> None:
    """The coordinator saved and everybody left, as it was asked."""
    for pod in list(world.pods()):
        world.end(pod, 3, report_text("Suspended", step=20))
    world.report_now = None


async def test_a_scaled_job_saves_first_and_starts_again_with_the_new_count_without_counting_a_restart() -> None:
    world = await running_scalable()
    scale(world, 4)
    await passes(world)
    assert ("scaled to 4 trainers", -1) in world.calls and world.deleted == []
    assert (world.state, world.condition("Progressing")["reason"]) == ("Running", "Scaling")
    leave(world)
    await passes(world, 6)
    status = world.job["status"]
    assert sorted(member_of(p) for p in world.pods() if live(p)) == [
        "coordinator", "loader-0", "trainer-0", "trainer-1", "trainer-2", "trainer-3",
    ]  # fmt: skip
    config = world.objects["ConfigMap", f"demo-config-{status['pinned']['hash']}"]["data"]["job.json"]
    assert json.loads(config)["trainers"] == 4
    assert status["restarts"] == {"counted": 0, "ignored": 0}
    assert [(a["number"], a.get("rule")) for a in status["attempts"]] == [(0, "ScaleChanged"), (1, None)]
    assert [h.reason for h in world.events].count("Scaled") == 1


async def test_a_coordinator_that_reports_and_never_answers_how_many_trainers_it_takes_is_asked_to_save() -> None:
    """Else the restart at the end of its time to save would cost every step since the last checkpoint."""
    world = await running_scalable()
    world.reply_to_size = lambda _: None
    scale(world, 4)
    asked = world.now
    await passes(world)
    for seconds, calls in ((58, []), (62, [("scaled to 4 trainers", -1)])):
        world.tick(asked + seconds - world.now)
        await passes(world, 1)
        assert world.calls == calls
    assert "waits for the checkpoint" in world.condition("Progressing")["message"]
    leave(world)
    await passes(world, 6)
    assert [(a["number"], a.get("rule")) for a in world.job["status"]["attempts"]] == [(0, "ScaleChanged"), (1, None)]


async def test_a_job_that_began_to_train_and_was_scaled_while_no_operator_looked_gets_its_time_to_save() -> None:
    world = with_job(trainers=trainers(2))
    await passes(world)
    world.tick(1000)
    world.run_all()
    world.report_now = report("Running", 10)
    scale(world, 4)
    asked = world.now
    await passes(world)
    assert ("scaled to 4 trainers", -1) in world.calls and world.condition("Progressing")["reason"] == "Scaling"
    for seconds, attempt in ((597, 0), (602, 1)):
        world.tick(asked + seconds - world.now)
        await passes(world, 1)
        assert world.job["status"]["attempt"] == attempt


async def test_changes_that_come_quickly_are_one_restart_with_the_last_count() -> None:
    world = await running_scalable()
    for count in (4, 3, 6):
        scale(world, count)
        await passes(world, 1)
    leave(world)
    await passes(world, 6)
    assert (world.job["status"]["attempt"], world.job["status"]["trainers"]["desired"]) == (1, 6)


async def test_a_job_that_does_not_train_yet_is_scaled_at_once() -> None:
    world = with_job(trainers=trainers(2))
    await passes(world)
    scale(world, 1)
    await passes(world, 6)
    assert world.calls == []
    assert sorted(member_of(p) for p in world.pods()) == ["coordinator", "loader-0", "trainer-0"]


async def test_a_count_that_changes_during_suspension_holds_at_resumption_and_restarts_nothing() -> None:
    world = await running_scalable()
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world, 2)
    leave(world)
    await passes(world)
    scale(world, 3)
    await passes(world)
    assert world.pods() == []
    world.edit("TrainingJob", "demo", suspend=False)
    await passes(world, 6)
    assert (len(world.pods()), world.job["status"]["attempt"]) == (5, 0)


async def test_a_second_change_after_a_first_is_a_restart_of_its_own() -> None:
    world = await running_scalable()
    for attempt, count in enumerate((3, 2), 1):
        scale(world, count)
        await passes(world)
        leave(world)
        await passes(world, 6)
        world.run_all()
        world.report_now = report("Running", 30)
        await passes(world, 6)
        assert (world.job["status"]["attempt"], world.job["status"]["ready"]) == (attempt, f"{count}/{count}")


async def test_trainers_that_find_no_node_in_time_are_done_without_where_enough_found_one() -> None:
    world = with_job(trainers={**trainers(4), "minCount": 2})
    world.unplaceable = {"trainer-1"}
    await passes(world)
    world.run_all()
    world.tick(890)
    await passes(world)
    assert world.job["status"]["attempt"] == 0
    assert "trainer-1: Unschedulable: 0/2 nodes are available" in world.condition("Succeeded")["message"]
    world.unplaceable = set()
    world.unschedulable(world.pod("trainer-1"))
    world.tick(20)
    await passes(world, 6)
    world.run_all()
    await passes(world, 6)
    status = world.job["status"]
    assert (status["ready"], status["restarts"]) == ("3/3", {"counted": 0, "ignored": 0})
    assert world.condition("Degraded")["reason"] == "CapacityLost"
    assert status["attempts"][0]["rule"] == "CapacityLost"


async def test_a_gang_without_room_waits_with_a_message_and_consumes_no_restarts() -> None:
    world = with_job(failurePolicy={"maxRestarts": 0})
    world.unplaceable = {"coordinator", "loader-0", "trainer-0", "trainer-1"}
    await passes(world)
    world.run_all()
    world.report_now = report("Waiting", 0)
    for _ in range(5):
        world.tick(1000)
        await passes(world)
    assert world.state == "Unschedulable" and len(world.created) == 4
    assert "coordinator and 3 more: Unschedulable" in world.condition("PodsReady")["message"]


def test_a_failure_in_the_pass_that_changes_the_size_is_counted_and_said() -> None:
    lost = (replace(COORDINATOR, ready=False), ended(9))
    decision = Scene(lost, seen="coordinator,trainer:1", spec={"trainers": trainers(3)}).decide()
    (write,) = decision.of(WriteStatus)
    assert (write.status["attempt"], write.status["restarts"]) == (1, {"counted": 1, "ignored": 0})
    assert [e.reason for e in decision.of(Event)][:2] == ["WorkerRestarted", "Scaled"]


def scaled(state: str = "Running", reason: str = "Training", since: float = NOW - 600) -> Manifest:
    """The status of a job of two trainers; `since`: of its condition Progressing, with this reason."""
    return {
        "conditions": [condition("Succeeded", "Unknown", reason=state), condition("Progressing", "True", since, reason)]
    }


TRAINS = report("Running", 10)


@pytest.mark.parametrize(
    ("pods", "answer", "status", "count", "saves"),
    [
        ((COORDINATOR,), TRAINS, scaled(), 3, True),
        ((COORDINATOR,), TRAINS, scaled(), 1, True),
        ((COORDINATOR,), TRAINS, scaled(), 2, False),
        ((COORDINATOR,), report("Suspended", 10), scaled(), 3, True),  # and is about to leave
        ((COORDINATOR,), report("Starting", 10), scaled("Starting"), 3, False),
        ((COORDINATOR,), None, scaled(), 3, True),  # one answer is missing
        ((COORDINATOR,), None, scaled("Starting"), 3, False),
        ((replace(COORDINATOR, ready=False),), None, scaled(), 3, False),
        ((replace(COORDINATOR, deleting=True),), TRAINS, scaled(), 3, False),
        ((ended(1, COORDINATOR),), TRAINS, scaled(), 3, False),
        ((TRAINER,), TRAINS, scaled(), 3, False),
        ((COORDINATOR,), TRAINS, scaled(reason="Scaling", since=NOW - 599), 3, True),
        ((COORDINATOR,), TRAINS, scaled(reason="Scaling", since=NOW - 600), 3, False),
    ],
)
def test_a_gang_saves_for_ten_minutes_before_it_gets_another_size_if_its_coordinator_can(
    pods: tuple[PodView, ...], answer: JobReport | None, status: Manifest, count: int, saves: bool
) -> None:
    context = Scene(pods, answer, status=status, spec={"trainers": trainers(count)}).context()
    begun = NOW - 599 if "Scaling" in str(status) else NOW
    change = f"from 2 to {count} trainers"
    assert context.config is not None
    assert plan_resize(context, context.config) == (
        None if saves or count == 2 else Resize(0, 0, "ScaleChanged", change)
    )
    assert resize.calls(context) == ((CheckpointAndStop(f"scaled to {count} trainers"),) if saves else ())
    assert resize.requeue_times(context) == ((begun + 600,) if saves else ())
    assert resize.reason(context) == ("Scaling" if saves else "")
    assert resize.message(context) == (f"{change}: waits for the checkpoint" if saves else "")


def lost(state: str = "Restarting", status: str = "False", since: float = NOW - 119) -> Manifest:
    """The status of a job whose world is lost since then."""
    return {"conditions": [condition("Succeeded", "Unknown", reason=state), condition("Progressing", status, since)]}


@pytest.mark.parametrize(
    ("pod", "phase", "status", "waits"),
    [
        (COORDINATOR, "Starting", lost(), True),
        (COORDINATOR, "Waiting", lost(), True),
        (COORDINATOR, "Indexing", lost(), False),
        (replace(COORDINATOR, ready=False), "Starting", lost(), False),
        (COORDINATOR, "Starting", lost("Starting"), False),  # it has not trained yet
        (COORDINATOR, "Starting", lost(since=NOW - 120), False),
        (COORDINATOR, "Starting", lost("Running", "True", NOW - 5000), True),  # it trained until a moment ago
        (COORDINATOR, "Starting", {}, False),
    ],
)
def test_another_size_waits_two_minutes_for_a_coordinator_that_forms_its_world_again(
    pod: PodView, phase: str, status: Manifest, waits: bool
) -> None:
    context = Scene((pod,), report(phase, 10), status=status, spec={"trainers": trainers(3)}).context()
    assert context.config is not None
    assert (plan_resize(context, context.config) is None) is waits
    assert resize.requeue_times(context) == ((NOW + 2,) if waits else ())


def placed(index: int, **more: Any) -> PodView:
    return replace(TRAINER, index=index, node="n", **more)


def unplaced(index: int, created: float = NOW - 900, reason: str = "Unschedulable") -> PodView:
    return replace(TRAINER, index=index, phase="Pending", ready=False, created=created, unscheduled_reason=reason)


@pytest.mark.parametrize(
    ("pods", "answer", "least", "size"),
    [
        ((placed(0), placed(1), unplaced(2), unplaced(3)), None, 2, 2),
        ((placed(0), placed(1), unplaced(2), unplaced(3)), None, 3, None),
        ((placed(0), placed(1), unplaced(2), unplaced(3)), report("Starting", 0), 2, 2),
        ((placed(0), placed(1), unplaced(2), unplaced(3)), TRAINS, 2, None),
        ((placed(0), placed(1), unplaced(2, NOW - 899), unplaced(3)), None, 2, 2),
        ((placed(0), placed(1), unplaced(2, NOW - 899)), None, 2, None),
        ((placed(0), placed(1), unplaced(2, reason="SchedulingGated")), None, 2, None),
        ((placed(0), placed(1), placed(2, phase="Pending"), placed(3)), None, 2, None),
        ((placed(0), placed(1, deleting=True), unplaced(2)), None, 2, None),
        ((placed(0), placed(1, phase="Failed"), unplaced(2)), None, 2, None),
        ((placed(0), replace(COORDINATOR, node="n"), unplaced(2)), None, 2, None),
        ((placed(0), placed(1), replace(unplaced(0), role="loader")), None, 2, None),
    ],
)
def test_a_gang_shrinks_before_it_trains_to_the_trainers_that_found_a_node_in_time(
    pods: tuple[PodView, ...], answer: JobReport | None, least: int, size: int | None
) -> None:
    spec = {"trainers": {"count": 4, "minCount": least, "maxCount": 4}}
    context = Scene((COORDINATOR, *pods), answer, asked=4, spec=spec).context()
    assert context.config is not None
    found = plan_resize(context, context.config)
    text = f"only {size} of 4 trainers found a node within startTimeoutSeconds (900)"
    assert found == (None if size is None else Resize(size, 4, "CapacityLost", text))


@pytest.mark.parametrize(("waited", "asked"), [(59, 0), (60, 1)])
def test_a_coordinator_that_does_not_answer_is_asked_to_save_in_the_sixtieth_second(waited: int, asked: int) -> None:
    status = {"conditions": [condition("Progressing", "False", NOW - waited, resize.REASON)]}
    scene = Scene(GANG, TRAINS, spec={"trainers": {"count": 3}}, status=status, sizing=Sizing(3, None))
    assert len(resize.calls(scene.context())) == asked
