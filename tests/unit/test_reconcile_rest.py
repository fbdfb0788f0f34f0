"""A job for which there is nothing to do costs the API server nothing until its next look."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from coxswain_operator.cluster import Conflict
from coxswain_operator.controller import QUOTA_SECONDS, RESYNC_SECONDS, RETRY_SECONDS, Controller
from coxswain_operator.reconcile.partial import LONGEST_LOOK_SECONDS, LOOK_SECONDS
from tests.unit.fake_cluster import NAMESPACE, FakeCluster, report, report_text
from tests.unit.test_reconcile_lifecycle import KEYS, RESTART_JOB, passes, running
from tests.unit.test_reconcile_partial import waiting

Scene = Callable[[], Awaitable[FakeCluster]]
POLL = 60.0


async def delays(world: FakeCluster, count: int = 3) -> list[float]:
    """Until the next of these passes each. None of them may write anything."""
    controller, calls = Controller(world, world, world.clock, poll_seconds=POLL, keys=KEYS), list[tuple[str, str]]()
    world.before_call = lambda verb, what: calls.append((verb, what))
    found = [await controller.reconcile_job(NAMESPACE, "demo") for _ in range(count)]
    assert not [call for call in calls if call[0] in ("create", "delete", "patch", "leave")]
    return [delay.most for delay in found if delay is not None]


async def in_its_queue() -> FakeCluster:
    world = await waiting()
    await passes(world, 10)
    return world


async def backed_off() -> FakeCluster:
    """All its nodes are released: one trainer found none in time."""
    world = await running()
    world.unplaceable, world.report_now = {"trainer-1"}, report("Waiting", 10)
    world.vanish(world.pod("trainer-1") or {})
    for _ in range(200):
        await passes(world, 1)
        if world.condition("Progressing")["reason"] == "GangReleased":
            await passes(world, 6)
            return world
        world.run_all()
        world.tick(10)
    raise AssertionError("no node was released")


async def delayed() -> FakeCluster:
    """Its fifth restart in a row waits for eight seconds."""
    world = await running(failurePolicy={"rules": [RESTART_JOB]})
    for count in (20, 20, 20, 20, 2):
        world.end(world.pod("trainer-0") or {}, 7)
        await passes(world, count)
    assert world.pods() == []
    return world


async def ended(ttl: int | None = None) -> FakeCluster:
    world = await running(**({} if ttl is None else {"ttlSecondsAfterFinished": ttl}))
    world.job["metadata"]["finalizers"] = ["example.com/audit"]
    world.end(world.pod("coordinator") or {}, 0, report_text("Completed", step=100))
    await passes(world)
    world.tick(600)
    await passes(world)
    return world


async def expired() -> FakeCluster:
    world = await ended(60)
    assert "deletionTimestamp" in world.job["metadata"]
    return world


async def kept_by_a_finalizer() -> FakeCluster:
    """Its pod was deleted by force, on a lost node."""
    world = await running()
    world.set_node("node-of-trainer-1", "Unknown")
    (world.pod("trainer-1") or {})["metadata"]["finalizers"] = ["kueue.x-k8s.io/managed"]
    world.report_now = None
    await world.delete("Pod", NAMESPACE, "demo-trainer-1-0")
    await passes(world, 10)
    assert world.pod("trainer-1") is not None
    return world


async def suspended() -> FakeCluster:
    world = await running()
    world.edit("TrainingJob", "demo", suspend=True)
    for pod in world.pods():
        world.end(pod, 3)
    await passes(world, 6)
    assert world.state == "Suspended"
    return world


@pytest.mark.parametrize(
    ("scene", "least", "most"),
    [
        (running, POLL, POLL), (suspended, POLL, POLL), (ended, RESYNC_SECONDS, RESYNC_SECONDS),
        (expired, RESYNC_SECONDS, RESYNC_SECONDS), (in_its_queue, LOOK_SECONDS, LOOK_SECONDS), (backed_off, 5.0, 30.0),
        (delayed, 5.0, 8.0), (kept_by_a_finalizer, 10.0, 10.0),
    ],
)  # fmt: skip
async def test_a_job_that_waits_writes_nothing_and_is_looked_at_later(scene: Scene, least: float, most: float) -> None:
    found = await delays(await scene())
    assert len(found) == 3 and all(least <= delay <= most for delay in found)


async def test_an_order_to_stop_that_did_not_arrive_is_repeated_soon() -> None:
    world = await running()
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world, 6)
    world.reached = False
    asked = len(world.calls)
    assert await delays(world) == [RETRY_SECONDS] * 3
    assert len(world.calls) == asked + 3
    world.reached = True
    assert min(await delays(world)) > RETRY_SECONDS


async def test_a_group_that_met_a_conflict_leaves_its_queue_soon() -> None:
    world, met = await waiting(), list[str]()
    group = world.workload["metadata"]["name"]

    async def meets(namespace: str, name: str, pod: str, uid: str = "") -> None:
        met.append(name)
        raise Conflict(name)

    world.leave_queue = meets  # type: ignore[method-assign]
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world, 6)
    met.clear()
    assert max(await delays(world)) <= QUOTA_SECONDS
    assert met == [group] * 3


@pytest.mark.parametrize(("waited", "look"), [(0, LOOK_SECONDS), (400, 20.0), (3600, LONGEST_LOOK_SECONDS)])
async def test_a_job_in_its_queue_is_looked_at_each_few_seconds_and_more_rarely_after_long(
    waited: int, look: float
) -> None:
    world = await in_its_queue()
    world.tick(waited)
    assert (await delays(world))[-1] == pytest.approx(look, abs=1.0)


async def test_a_job_that_was_suspended_for_long_is_looked_at_in_its_queue_as_soon_as_one_that_has_just_come() -> None:
    world = await in_its_queue()
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world, 6)
    world.tick(86400)
    world.edit("TrainingJob", "demo", suspend=False)
    await passes(world, 6)
    assert (await delays(world))[-1] == pytest.approx(LOOK_SECONDS, abs=1.0)


async def test_a_pod_of_a_lost_node_that_a_finalizer_keeps_is_named_with_the_way_out() -> None:
    world = await kept_by_a_finalizer()
    message = world.condition("Succeeded")["message"]
    assert "FinalizerKept: Pod demo-trainer-1-0 on node-of-trainer-1 is deleted, and a finalizer keeps it" in message
    assert [p["metadata"]["name"] for p in world.pods() if p["metadata"]["labels"]["coxswain.dev/index"] == "1"] == [
        "demo-trainer-1-0"
    ]
    world.vanish(world.pod("trainer-1") or {})
    await passes(world, 10)
    assert (world.pod("trainer-1") or {})["metadata"]["name"] == "demo-trainer-1-1"
    assert "FinalizerKept" not in world.condition("Succeeded")["message"]
