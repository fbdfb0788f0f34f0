"""A cause that stops many pods of a start counts once in each round of replacements, and ends a job that it keeps stopping."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coxswain.wire import Fault
from coxswain_operator.reconcile.times import seconds, stamp
from tests.unit.fake_cluster import FakeCluster, live, member_of, with_job
from tests.unit.test_reconcile_lifecycle import passes, running

LIMIT = 900  # startTimeoutSeconds
AWAY = msgspec.json.encode(Fault("Away", "s3://runs: the server answers 503", retryable=True)).decode()


def counted(world: FakeCluster) -> int:
    found: int = world.job["status"]["restarts"]["counted"]
    return found


def without_image(world: FakeCluster, spread: float = 0.0) -> None:
    """Trainers cannot be started; all else runs. Each was created so many seconds after the one before."""
    for pod in filter(live, world.pods()):
        if not member_of(pod).startswith("trainer"):
            world.run(pod)
        elif pod["status"]["phase"] == "Pending" and "containerStatuses" not in pod["status"]:
            created = seconds(pod["metadata"]["creationTimestamp"]) + spread * int(
                member_of(pod).removeprefix("trainer-")
            )
            pod["metadata"]["creationTimestamp"] = stamp(created)
            world.wait(pod, "ImagePullBackOff", "Back-off pulling image")


async def rounds(world: FakeCluster, count: int, spread: float = 0.0) -> None:
    """Passes around the deadlines of so many rounds."""
    for _ in range(count):
        await passes(world)
        without_image(world, spread)
        world.tick(LIMIT - 5)
        for _ in range(14):
            await passes(world, 2)
            world.tick(8)


async def start(**policy: Any) -> FakeCluster:
    return with_job(trainers={"count": 12}, startTimeoutSeconds=LIMIT, failurePolicy=policy)


@pytest.mark.parametrize("spread", [0, 5], ids=["in one pass", "over a minute"])
async def test_twelve_trainers_whose_image_cannot_be_pulled_get_a_second_try_for_one_counted_restart(
    spread: int,
) -> None:
    world = await start(maxRestarts=10)
    await rounds(world, 1, spread)
    assert (world.state, counted(world)) == ("Starting", 1)
    assert {f"demo-trainer-{n}-1" for n in range(12)} <= set(world.created)
    assert world.job["status"]["restarts"]["ignored"] == 11


async def test_each_round_counts_so_that_an_image_that_never_comes_ends_the_job() -> None:
    world = await start(maxRestarts=2)
    await rounds(world, 2, spread=2)
    assert (world.state, counted(world)) == ("Starting", 2)
    await rounds(world, 1, spread=2)
    assert world.state == "Failed" and "RestartLimitExceeded" in world.condition("Succeeded")["message"]


async def test_a_member_that_waits_with_a_higher_number_and_finds_no_node_hides_no_round() -> None:
    world = await start(maxRestarts=10)
    await passes(world)
    for _ in range(3):
        world.vanish(world.pod("trainer-11"))
        await passes(world, 8)
    world.unschedulable(world.pod("trainer-11"))
    world.pod("trainer-11")["status"]["containerStatuses"] = []
    await rounds(world, 1)
    assert counted(world) == 1


async def test_other_failures_of_the_same_pass_count_for_themselves() -> None:
    world = await start(maxRestarts=10)
    await passes(world)
    without_image(world)
    world.tick(LIMIT)
    for member in ("trainer-0", "trainer-1"):
        world.end(world.pod(member), 1)
    await passes(world)
    assert counted(world) == 3


async def test_loaders_that_leave_one_after_the_other_because_the_store_is_away_are_one_counted_restart() -> None:
    """Those that were replaced already do not work yet."""
    world = await running(data={"loaders": {"min": 16, "max": 16}})
    for leaving in (range(4), range(4, 10), range(10, 16)):
        for n in leaving:
            world.end(world.pod(f"loader-{n}"), 1, AWAY)
        await passes(world)
    assert counted(world) == 1
    world.run_all()
    world.end(world.pod("loader-3"), 1, AWAY)
    await passes(world)
    assert counted(world) == 2
    for n in range(2):
        world.end(world.pod(f"loader-{n}"), 1)  # by themselves
    await passes(world)
    assert counted(world) == 4


async def test_a_loss_that_a_rule_does_not_count_stands_for_no_other_one_of_its_cause() -> None:
    spared = {
        "name": "spared",
        "onExitCodes": {"operator": "In", "values": [9]},
        "action": "RestartTrainerIgnoringLimit",
    }
    world = await running(data={"loaders": {"min": 4, "max": 4}}, failurePolicy={"rules": [spared]})
    for n, code in enumerate((9, 1, 1)):
        world.end(world.pod(f"loader-{n}"), code, AWAY)
    await passes(world)
    assert counted(world) == 1
