"""Boundaries and refusals of the policies: the forbidden thing is tried, and so is the exact limit."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain_operator.controller import Controller
from coxswain_operator.reconcile.actions import Delete
from coxswain_operator.views import Manifest
from tests.unit.fake_cluster import (
    NAMESPACE,
    FakeCluster,
    data_mix,
    data_source,
    member_of,
    report,
    report_text,
    training_job,
)
from tests.unit.test_reconcile_lifecycle import ANEW, passes, running

FATAL = {"name": "fatal", "action": "Fail", "onExitCodes": {"operator": "In", "values": [9]}}


async def one_pass(world: FakeCluster) -> tuple[Delete, ...]:
    """The deletions of one pass."""
    decision = await Controller(world, world, world.clock).pass_once(NAMESPACE, "demo")
    assert decision is not None
    return tuple(action for action in decision.actions if isinstance(action, Delete))


async def starting(**trainers: Any) -> FakeCluster:
    """Four trainers, of which trainer-2 and trainer-3 found no node for startTimeoutSeconds."""
    world = FakeCluster(data_source(), data_mix(), training_job(trainers={"count": 4, "maxCount": 4, **trainers}))
    await passes(world)
    world.unplaceable = {"trainer-2", "trainer-3"}
    world.run_all()
    world.tick(895)
    return world


@pytest.mark.parametrize(("least", "size"), [(2, 2), (3, 4)])
async def test_a_gang_starts_smaller_with_exactly_min_count_trainers_and_not_with_fewer(least: int, size: int) -> None:
    world = await starting(minCount=least)
    await passes(world, 1)
    assert world.job["status"]["attempt"] == 0
    world.tick(4)
    await passes(world, 3)
    assert world.job["status"]["trainers"]["desired"] == size


async def test_a_gang_that_trains_is_not_shrunk_although_a_trainer_finds_no_node() -> None:
    world = await starting(minCount=2)
    world.report_now = report("Running", 10)
    world.tick(1000)
    await passes(world)
    assert (world.job["status"]["attempt"], world.job["status"]["trainers"]["desired"]) == (0, 4)


async def test_a_gang_whose_every_trainer_found_a_node_is_not_shrunk() -> None:
    world = await starting(minCount=2)
    world.unplaceable = set()
    for pod in world.pods():
        world.run(pod)
    world.tick(1000)
    await passes(world)
    assert world.job["status"]["attempt"] == 0


async def test_trainers_that_a_queue_holds_back_do_not_shrink_their_gang() -> None:
    world = await starting(minCount=2)
    for member in ("trainer-2", "trainer-3"):
        world.unschedulable(world.pod(member) or {}, "SchedulingGated")
    world.tick(1000)
    await passes(world)
    assert world.job["status"]["attempt"] == 0


@pytest.mark.parametrize(("behind", "reason"), [(20, "Saved"), (21, "Stale")])
async def test_a_checkpoint_is_stale_after_more_than_two_intervals(behind: int, reason: str) -> None:
    world = await running(checkpoint={"uri": "file:///runs/demo", "everySteps": 10})
    world.report_now = report("Running", 50, checkpoint_step=50 - behind)
    world.tick(60)
    await passes(world, 1)
    assert world.condition("CheckpointFresh")["reason"] == reason


@pytest.mark.parametrize("step", [-1, 0])
async def test_step_zero_is_a_checkpoint_and_none_is_not(step: int) -> None:
    world = await running()
    world.report_now = report("Running", 0, checkpoint_step=step)
    world.tick(60)
    await passes(world, 1)
    assert world.condition("CheckpointFresh")["reason"] == ("NoCheckpoint" if step < 0 else "Saved")


async def test_suspension_stores_new_numbers_in_the_pass_that_deletes_the_pods() -> None:
    world = await running(failurePolicy={"maxRestarts": 0})
    world.edit("TrainingJob", "demo", suspend=True)
    world.end(world.pod("coordinator") or {}, 3, report_text("Suspended", step=20))
    assert {d.name for d in await one_pass(world)} >= {"demo-trainer-0-0", "demo-trainer-1-0"}
    assert [(e["name"], e["number"]) for e in world.job["status"]["incarnations"]] == [("all", 1)]
    assert world.job["status"]["seen"] == ""


async def test_suspension_taken_back_while_pods_leave_counts_no_loss() -> None:
    world = await running(failurePolicy={"maxRestarts": 0})
    world.edit("TrainingJob", "demo", suspend=True)
    world.end(world.pod("coordinator") or {}, 3, report_text("Suspended", step=20))
    await one_pass(world)
    world.edit("TrainingJob", "demo", suspend=False)
    world.reap()
    await passes(world)
    assert world.job["status"]["restarts"] == {"counted": 0, "ignored": 0}
    assert sorted(p["metadata"]["name"] for p in world.pods()) == [
        "demo-coordinator-1", "demo-loader-0-1", "demo-trainer-0-1", "demo-trainer-1-1",
    ]  # fmt: skip


@pytest.mark.parametrize("seconds", [599, 600])
async def test_suspension_waits_ten_minutes_for_a_checkpoint(seconds: int) -> None:
    world = await running()
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world, 1)
    world.tick(seconds - 1)  # the pass took one
    await one_pass(world)
    assert bool(world.deleted) is (seconds == 600)


async def suspended(world: FakeCluster) -> None:
    world.edit("TrainingJob", "demo", suspend=True)
    world.end(world.pod("coordinator") or {}, 3, report_text("Suspended", step=20))


async def failed(world: FakeCluster) -> None:
    world.end(world.pod("trainer-0") or {}, 9)


async def replaced(world: FakeCluster) -> None:
    world.end(world.pod("trainer-0") or {}, 1)


async def restarted(world: FakeCluster) -> None:
    world.end(world.pod("trainer-0") or {}, 7)


async def stranded(world: FakeCluster) -> None:
    pod = world.pod("trainer-0") or {}
    world.set_node(pod["spec"]["nodeName"], "Unknown")
    pod["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:00Z"


async def outlived(world: FakeCluster) -> None:
    world.end(world.pod("coordinator") or {}, 0, report_text("Completed", step=100))
    await passes(world, 1)
    world.tick(14)


async def expired(world: FakeCluster) -> None:
    await outlived(world)
    world.tick(100)


async def reconfigured(world: FakeCluster) -> None:
    world.edit("TrainingJob", "demo", stragglers={"action": "Warn"})


@pytest.mark.parametrize(
    ("scene", "kind"),
    [(s, "Pod") for s in (suspended, failed, replaced, restarted, stranded, outlived)]
    + [(expired, "TrainingJob"), (reconfigured, "ConfigMap")],
)
async def test_every_deletion_names_the_uid_that_was_observed(scene: Any, kind: str) -> None:
    world = await running(failurePolicy={"rules": [ANEW, FATAL]}, ttlSecondsAfterFinished=100)
    await scene(world)
    observed = {(k, name): o["metadata"]["uid"] for (k, name), o in world.objects.items()}
    deletes = await one_pass(world)
    assert kind in {d.kind for d in deletes}
    assert [d.uid for d in deletes] == [observed[d.kind, d.name] for d in deletes]


async def test_a_pod_that_takes_the_name_of_the_observed_one_is_not_deleted() -> None:
    world = await running()
    pod = world.pod("trainer-1") or {}
    world.end(pod, 1)

    def swap(verb: str, what: str) -> None:
        if (verb, what) == ("delete", "demo-trainer-1-0"):
            pod["metadata"]["uid"] = "another"

    world.before_call = swap
    await one_pass(world)
    assert world.deleted == []


async def test_a_pod_that_vanished_leaves_its_number_to_no_other() -> None:
    world = await running()
    for number in (1, 2, 3):
        world.vanish(world.pod("trainer-1") or {})
        world.tick(1000)
        await passes(world, 2)
        world.run_all()
        await passes(world, 1)
        assert (world.pod("trainer-1") or {})["metadata"]["name"] == f"demo-trainer-1-{number}"


async def test_a_pod_that_vanished_before_its_number_was_seen_keeps_it_and_every_later_one_gets_another() -> None:
    world = await running()
    world.edit("TrainingJob", "demo", failurePolicy={"rules": [ANEW]})
    world.vanish(world.pod("trainer-1") or {})
    await passes(world, 2)
    world.end(world.pod("trainer-0") or {}, 7)
    await passes(world, 6)
    assert {p["metadata"]["name"].rsplit("-", 1)[1] for p in world.pods()} == {"2"}  # one more than the highest


@pytest.mark.parametrize(("limit", "state"), [(0, "Failed"), (1, "Running"), (2, "Running")])
async def test_the_limit_itself_is_allowed(limit: int, state: str) -> None:
    world = await running(failurePolicy={"maxRestarts": limit})
    world.end(world.pod("trainer-1") or {}, 1)
    await passes(world, 2)
    world.run_all()
    await passes(world, 2)
    assert world.state == state


@pytest.mark.parametrize(("seconds", "delay"), [(599, 1), (600, 0)])
async def test_a_pod_that_worked_for_ten_minutes_starts_the_delays_again(seconds: int, delay: int) -> None:
    world = await running()
    world.end(world.pod("trainer-1") or {}, 1)
    await one_pass(world)
    world.tick(seconds)
    world.reap()
    await one_pass(world)
    world.run_all()
    world.end(world.pod("trainer-1") or {}, 1)
    await one_pass(world)
    entry = next(e for e in world.job["status"]["incarnations"] if e["name"] == "trainer-1")
    assert (entry["number"], entry.get("delaySeconds", 0)) == (2, delay)


@pytest.mark.parametrize(("limit", "state"), [(61, "Running"), (60, "Failed")])
async def test_the_deadline_ends_a_job_in_its_last_second(limit: int, state: str) -> None:
    world = await running(activeDeadlineSeconds=limit)
    started = world.job["status"]["startTime"]
    world.now = 1000.0 + 60
    assert started == "1970-01-01T00:16:40Z"
    await one_pass(world)
    assert world.state == state


@pytest.mark.parametrize(("seconds", "deleted"), [(14, 0), (15, 3)])
async def test_pods_of_a_completed_job_get_fifteen_seconds(seconds: int, deleted: int) -> None:
    world = await running()
    world.end(world.pod("coordinator") or {}, 0, report_text("Completed", step=100))
    await one_pass(world)
    world.tick(seconds)
    assert len(await one_pass(world)) == deleted


@pytest.mark.parametrize(("margin", "forced"), [(29, 0), (30, 1)])
async def test_a_pod_on_a_node_that_is_down_is_forced_half_a_minute_after_its_grace(margin: int, forced: int) -> None:
    world = await running()
    pod: Manifest = world.pod("trainer-1") or {}
    world.set_node(pod["spec"]["nodeName"], "False")
    await world.delete("Pod", NAMESPACE, pod["metadata"]["name"])
    world.tick(margin)
    assert sum(d.force for d in await one_pass(world)) == forced
    assert member_of(pod) == "trainer-1"


@pytest.mark.parametrize(("seconds", "exists"), [(99, True), (100, False)])
async def test_a_finished_job_is_deleted_when_its_time_to_live_is_over(seconds: int, exists: bool) -> None:
    world = await running(ttlSecondsAfterFinished=100)
    world.end(world.pod("coordinator") or {}, 0, report_text("Completed", step=100))
    await one_pass(world)
    world.tick(seconds)
    await one_pass(world)
    assert (("TrainingJob", "demo") in world.objects) is exists


@pytest.mark.parametrize(("seconds", "attempt"), [(599, 0), (600, 1)])
async def test_a_resize_waits_ten_minutes_for_a_checkpoint(seconds: int, attempt: int) -> None:
    world = await running(trainers={"count": 2, "minCount": 1, "maxCount": 4})
    world.edit("TrainingJob", "demo", trainers={"count": 3, "minCount": 1, "maxCount": 4})
    await one_pass(world)
    world.tick(seconds)
    await one_pass(world)
    assert world.job["status"]["attempt"] == attempt
