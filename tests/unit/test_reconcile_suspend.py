"""Suspension, resumption, the stop at a step, and what may change meanwhile."""

from __future__ import annotations

from coxswain.names import ANNOTATION_STOP_AT
from tests.unit.fake_cluster import FakeCluster, report, report_text
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


async def test_pods_that_run_without_a_node_as_the_local_clusters_do_save_before_they_go() -> None:
    world = await running()
    for pod in world.pods():
        pod["spec"].pop("nodeName", None)
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world)
    assert world.calls
    assert (world.state, world.deleted) == ("Suspending", [])


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


async def test_a_job_that_never_answers_is_suspended_without_its_checkpoint_in_the_end() -> None:
    world = await running()
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world)
    world.tick(600)
    await passes(world)
    assert (world.state, world.pods()) == ("Suspended", [])


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
