"""A start that finds nodes for some pods only gives them back: no two jobs wait for each other's nodes for ever."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coxswain.wire import Fault
from coxswain_operator.reconcile import half_placed
from coxswain_operator.reconcile.actions import CreatePod, Delete, WriteStatus
from coxswain_operator.reconcile.context import build_context
from coxswain_operator.reconcile.times import seconds, stamp
from coxswain_operator.refusals import UNAVAILABLE
from coxswain_operator.settings import Settings
from coxswain_operator.views import PodView
from tests.draws import draws
from tests.unit.fake_cluster import FakeCluster, report, with_job
from tests.unit.reconcile_scenes import COORDINATOR, LOADER, NOW, TRAINER, Scene, condition, ended
from tests.unit.slot_scheduler import TIMEOUT, TRAINS_SECONDS, SlotScheduler
from tests.unit.test_reconcile_lifecycle import passes

ONE: dict[str, Any] = {"trainers": {"count": 1}}  # three pods with coordinator and loader
LONGEST_TIMEOUT = TIMEOUT * (1 + half_placed.SPREAD)


async def one_runs_and_then_the_other(world: SlotScheduler) -> None:
    await world.play(horizon=20 * TRAINS_SECONDS)
    assert sorted(world.done) == ["first", "second"]
    assert 0 < world.longest_half <= LONGEST_TIMEOUT + 1
    assert set(world.sizes.values()) == {3}


@pytest.mark.parametrize("seed", range(10))
async def test_of_two_jobs_that_hold_two_of_four_slots_and_need_three_one_runs_and_then_the_other(seed: int) -> None:
    world = SlotScheduler(4, {"first": ONE, "second": ONE}, seed, fair=True)
    await one_runs_and_then_the_other(world)


@pytest.mark.parametrize("seed", range(10))
async def test_of_two_jobs_that_a_quota_stops_half_way_one_runs_and_then_the_other(seed: int) -> None:
    """Each creates two of its three pods; the third is refused."""
    world = SlotScheduler(4, {"first": ONE, "second": ONE}, seed, quota=True)
    await one_runs_and_then_the_other(world)
    assert any("exceeded quota: slots" in e.message for e in world.events if e.reason == "GangReleased")


async def test_while_their_time_lasts_the_same_two_jobs_keep_what_they_hold() -> None:
    patient = {**ONE, "startTimeoutSeconds": 86_400}
    world = SlotScheduler(4, {"first": patient, "second": patient}, 0, fair=True)
    await world.play(horizon=86_000)
    assert (world.done, len(world.half_since)) == ([], 2)


@settings(max_examples=draws(4, 8))
@given(seed=st.integers(0, 2**32), slots=st.integers(5, 12), sizes=st.lists(st.integers(1, 3), min_size=2, max_size=4))
def test_jobs_of_any_sizes_that_fit_alone_all_run_whatever_the_scheduler_binds_first(
    seed: int, slots: int, sizes: list[int]
) -> None:
    world = SlotScheduler(slots, {f"job-{n}": {"trainers": {"count": size}} for n, size in enumerate(sizes)}, seed)
    asyncio.run(world.play(horizon=60 * TRAINS_SECONDS))
    assert len(world.done) == len(sizes)
    assert world.longest_half <= LONGEST_TIMEOUT + 1
    assert world.sizes == {f"job-{n}": size + 2 for n, size in enumerate(sizes)}
    assert not [e for e in world.events if e.reason in ("Failed", "NodeLost", "WorkerRestarted")]


@pytest.mark.parametrize("quota", [False, True])
@pytest.mark.parametrize("least", [1, 2, 3])
async def test_a_job_that_has_its_minimum_runs_with_it_and_gives_nothing_up(least: int, quota: bool) -> None:
    world = SlotScheduler(5, {"only": {"trainers": {"count": 4, "minCount": least}}}, 0, quota=quota)
    await world.play(horizon=4 * TRAINS_SECONDS)
    assert world.sizes == {"only": 5}
    assert "GangReleased" not in [e.reason for e in world.events]


def lacks_node(pod: PodView, created: float = NOW - 1500, reason: str = "Unschedulable") -> PodView:
    return replace(pod, phase="Pending", ready=False, node="", created=created, unscheduled_reason=reason)


HELD = tuple(replace(p, node="n") for p in (COORDINATOR, LOADER))
FIRST, SECOND = replace(TRAINER, name="demo-trainer-0-0", index=0, node="n"), TRAINER
HALF = (*HELD, FIRST, lacks_node(SECOND))
STARTING = tuple(replace(p, ready=False) for p in (*HELD, FIRST))


@pytest.mark.parametrize(
    ("pods", "spec", "answer", "gives_up"),
    [
        (HALF, {}, None, True),
        (HALF, {}, report("Indexing", 0), True),
        ((*STARTING, lacks_node(SECOND)), {}, None, True),  # a pod holds its node before it is ready
        (HALF, {}, report("Running", 10), False),  # it trains, whatever it lacks
        ((*HELD, FIRST, lacks_node(SECOND, NOW - 899)), {}, None, False),
        ((*HELD, FIRST, lacks_node(SECOND, reason="SchedulingGated")), {}, None, False),
        ((lacks_node(COORDINATOR), lacks_node(LOADER), lacks_node(FIRST), lacks_node(SECOND)), {}, None, False),
        ((*HELD, FIRST, replace(SECOND, node="n", phase="Pending")), {}, None, False),
        (HALF, {"trainers": {"count": 2, "minCount": 1}}, None, False),  # starts with one trainer
        (
            (lacks_node(COORDINATOR), FIRST, replace(SECOND, node="n")),
            {"trainers": {"count": 2, "minCount": 1}}, None, True,
        ),
        ((lacks_node(COORDINATOR), replace(FIRST, deleting=True), lacks_node(SECOND)), {}, None, False),
        ((*HELD, lacks_node(FIRST), lacks_node(SECOND, NOW - 899)), {}, None, True),  # the first to wait decides
    ],
)  # fmt: skip
def test_a_start_is_given_up_when_its_time_is_over_and_too_few_pods_hold_nodes(
    pods: tuple[PodView, ...], spec: dict[str, Any], answer: Any, gives_up: bool
) -> None:
    decision = Scene(pods, answer, spec=spec).decide()
    (write,) = (a for a in decision.actions if isinstance(a, WriteStatus))
    assert ("gang" in write.status) is gives_up
    if gives_up:
        assert {a.name for a in decision.of(Delete) if isinstance(a, Delete)} >= {p.name for p in pods}
        assert decision.of(CreatePod) == ()


@pytest.mark.parametrize(("since", "gives_up"), [(NOW - 899, False), (NOW - 1126, True)])
def test_a_job_whose_world_is_lost_gets_the_time_of_a_start_to_form_another_one(since: float, gives_up: bool) -> None:
    lost = {"conditions": [condition("Progressing", "False", since)]}
    found = half_placed.plan_release(Scene(HALF, report("Waiting", 10), status=lost).context())
    assert (found is not None) is gives_up


@pytest.mark.parametrize(("pod", "gives_up"), [(FIRST, True), (ended(1, FIRST), False), (ended(0, FIRST), False)])
def test_a_pod_that_has_ended_holds_no_node_that_could_be_given_back(pod: PodView, gives_up: bool) -> None:
    found = half_placed.plan_release(Scene((lacks_node(COORDINATOR), pod)).context())
    assert (found is not None) is gives_up


def due_of(uid: str, releases: int = 0) -> float:
    observed = Scene(HALF, status=released(releases)).observed
    observed.job["metadata"]["uid"] = uid
    return max(half_placed.requeue_times(build_context(observed, NOW, Settings())))


def released(releases: int) -> dict[str, Any]:
    return {"gang": {"releases": releases, "until": stamp(NOW - 1000)}} if releases else {}


def test_jobs_of_one_age_give_up_within_a_quarter_of_their_time_for_a_start_and_not_together() -> None:
    waited = [due_of(str(uid)) - 1000 for uid in range(200)]  # since the start
    assert 900 <= min(waited) < 900 * 1.02 and 900 * 1.23 < max(waited) <= 900 * 1.25


QUOTA, SILENT = Fault("QuotaExceeded", "exceeded quota", retryable=True), Fault(UNAVAILABLE, "500", retryable=True)
LATER = {"incarnations": [{"name": "trainer-1", "number": 1, "since": stamp(NOW - 899)}]}


@pytest.mark.parametrize(
    ("pods", "fault", "more", "gives_up"),
    [
        ((*HELD, FIRST), QUOTA, {}, True),
        ((*HELD, FIRST), None, {}, False),  # it is not refused: its pod comes with this pass
        ((*HELD, FIRST), SILENT, {}, False),  # other jobs would get no pods either
        ((*HELD, FIRST), QUOTA, {"report": report("Running", 10)}, False),
        ((*HELD, FIRST), QUOTA, {"status": LATER}, False),  # it was asked for later
        ((lacks_node(COORDINATOR),), QUOTA, {}, False),  # it holds no node
        ((*HELD, FIRST), QUOTA, {"spec": {"trainers": {"count": 2, "minCount": 1}}}, False),  # starts with one trainer
    ],
)
def test_a_start_whose_pods_are_refused_is_given_up_as_one_that_finds_no_nodes(
    pods: tuple[PodView, ...], fault: Fault | None, more: dict[str, Any], gives_up: bool
) -> None:
    decision = Scene(pods, rejection=fault, **more).decide()
    (write,) = (a for a in decision.actions if isinstance(a, WriteStatus))
    assert ("gang" in write.status) is gives_up


@pytest.mark.parametrize(("fault", "reason"), [(QUOTA, "CapacityLost"), (None, "AsExpected")])
def test_a_job_that_trains_without_a_trainer_that_is_refused_says_so(fault: Fault | None, reason: str) -> None:
    decision = Scene((*HELD, FIRST), report("Running", 10), rejection=fault).decide()
    (write,) = (a for a in decision.actions if isinstance(a, WriteStatus))
    (degraded,) = (c for c in write.status["conditions"] if c["type"] == "Degraded")
    assert degraded["reason"] == reason


async def half_placed_job(**spec: Any) -> FakeCluster:
    """A job that has just given its nodes back."""
    world = with_job(**spec)
    world.unplaceable = {"trainer-1"}
    await passes(world)
    world.run_all()
    world.tick(900 * (1 + half_placed.SPREAD))
    await passes(world, 2)
    return world


async def test_a_job_without_nodes_says_since_when_and_until_when_and_counts_no_time() -> None:
    world = await half_placed_job(activeDeadlineSeconds=1200)
    assert (world.state, world.pods()) == ("Queued", [])
    until = world.job["status"]["gang"]["until"]
    assert world.condition("Progressing")["reason"] == "GangReleased"
    assert world.condition("Succeeded")["message"].endswith(
        f"released the nodes of the others; starts again at {until}"
    )
    (event,) = (e for e in world.events if e.reason == "GangReleased")
    assert event.warning and event.message.startswith("3 of 4 pods held nodes while others found none within")
    assert event.message.endswith("trainer-1: Unschedulable: 0/2 nodes are available: full.")
    active = world.job["status"]["activeSeconds"]
    await passes(world, 10)
    assert world.job["status"]["activeSeconds"] == active
    assert world.job["status"]["restarts"] == {"counted": 0, "ignored": 0}


async def test_pods_come_back_after_the_wait_and_the_releases_are_forgotten_once_all_work() -> None:
    world = await half_placed_job()
    world.unplaceable = set()
    world.now = seconds(world.job["status"]["gang"]["until"]) - 1.5
    await passes(world, 1)
    assert world.pods() == []
    await passes(world, 3)
    assert len(world.pods()) == 4 and world.job["status"]["gang"]["releases"] == 1
    world.run_all()
    world.report_now = report("Running", 10)
    await passes(world)
    assert (world.state, world.job["status"].get("gang")) == ("Running", None)
    assert world.job["status"]["attempt"] == 0


def test_a_release_is_due_in_the_moment_for_which_a_pass_is_asked() -> None:
    due = due_of("u")
    found = [half_placed.plan_release(replace(Scene(HALF), now=now).context()) for now in (due - 0.001, due)]
    assert [release is not None for release in found] == [False, True]


@pytest.mark.parametrize(("left", "held"), [(0, False), (1, True), (600, True), (601, False)])
def test_a_back_off_lasts_to_its_end_unless_it_is_longer_than_any(left: int, held: bool) -> None:
    status = {"gang": {"releases": 1, "until": stamp(NOW + left)}}
    context = Scene(HALF, status=status).context()
    assert half_placed.is_held(context.status, NOW) is held
    assert bool(half_placed.message(context)) is held


def test_a_release_names_only_pods_that_lack_a_node_and_delays_no_pod_beyond_its_wait() -> None:
    pulls = replace(FIRST, phase="Pending", waiting="ImagePullBackOff", created=NOW - 10)
    again = [{"name": "all", "number": 0, "since": stamp(NOW - 1200), "delaySeconds": 8}]
    scene = Scene((*HELD, pulls, lacks_node(SECOND)), seen="coordinator", status={"incarnations": again})
    (write,) = (a for a in scene.decide().actions if isinstance(a, WriteStatus))
    said = next(c["message"] for c in write.status["conditions"] if c["type"] == "Succeeded")
    assert "trainer-1: Unschedulable" in said and "ImagePullBackOff" not in said
    assert [(e["number"], e.get("delaySeconds", 0)) for e in write.status["incarnations"]] == [(1, 0)]


def test_the_releases_are_forgotten_once_all_pods_work_although_none_trains_yet() -> None:
    decision = Scene((*HELD, FIRST, SECOND), status=released(2)).decide()
    (write,) = (a for a in decision.actions if isinstance(a, WriteStatus))
    assert "gang" not in write.status


def test_the_releases_are_forgotten_also_in_a_pass_that_changes_the_size() -> None:
    scene = Scene((*HELD, FIRST, SECOND), spec={"trainers": {"count": 3}}, status=released(2))
    (write,) = (a for a in scene.decide().actions if isinstance(a, WriteStatus))
    assert (write.status["attempt"], write.status.get("gang")) == (1, None)


async def test_each_start_that_finds_too_few_nodes_counts_one_more_release() -> None:
    world = await half_placed_job()
    for releases in (1, 2, 3):
        assert (world.job["status"]["gang"]["releases"], world.pods()) == (releases, [])
        world.now = seconds(world.job["status"]["gang"]["until"])
        await passes(world)
        world.run_all()
        world.tick(900 * (1 + half_placed.SPREAD))
        await passes(world, 2)


async def test_a_job_that_waits_for_its_nodes_can_be_suspended_and_starts_at_once_when_resumed() -> None:
    world = await half_placed_job()
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world)
    assert (world.state, world.job["status"].get("gang")) == ("Suspended", None)
    world.edit("TrainingJob", "demo", suspend=False)
    await passes(world, 3)
    assert len(world.pods()) == 4


async def test_a_gang_that_had_shrunk_asks_for_all_trainers_again_after_a_release() -> None:
    trainers = {"count": 3, "minCount": 2, "maxCount": 3}
    world = with_job(trainers=trainers)
    world.unplaceable = {"trainer-2"}
    await passes(world)
    for seconds_later in (900, 900 * (1 + half_placed.SPREAD)):
        world.run_all()
        world.tick(seconds_later)
        await passes(world, 6)
        world.unplaceable = {"trainer-1"}
    assert (world.state, world.job["status"]["attempt"], world.job["status"]["trainers"]["desired"]) == ("Queued", 1, 3)
    world.now = seconds(world.job["status"]["gang"]["until"])
    await passes(world)
    assert len(world.pods()) == 5


async def test_a_clock_that_is_set_back_does_not_hold_a_job_for_ever() -> None:
    world = await half_placed_job()
    world.now -= 100_000
    await passes(world, 3)
    assert len(world.pods()) == 4


@pytest.mark.parametrize("uid", ["a", "b", "c", "d", "e"])
def test_each_start_of_a_job_has_another_time_to_give_up_and_another_wait(uid: str) -> None:
    """Two jobs that happened to give up together do so only once."""
    assert len({due_of(uid, releases) for releases in range(5)}) == 5
    assert len({delay_of(uid, releases) for releases in range(5, 10)}) >= 4  # whole seconds of ten minutes at most


def delay_of(uid: str, releases: int) -> float:
    observed = Scene(HALF, status=released(releases)).observed
    observed.job["metadata"]["uid"] = uid
    found = half_placed.plan_release(build_context(observed, NOW + 1000, Settings()))
    assert found is not None
    return found.delay


@pytest.mark.parametrize(
    ("releases", "longest"), [(0, 30), (1, 60), (2, 120), (4, 480), (5, 600), (9, 600), (10**6, 600)]
)
def test_the_wait_doubles_up_to_ten_minutes_and_is_random_but_the_same_for_the_same_job(
    releases: int, longest: int
) -> None:
    delays = {uid: delay_of(uid, releases) for uid in map(str, range(200))}
    assert delays == {uid: delay_of(uid, releases) for uid in delays}
    assert all(longest / 2 <= delay <= longest for delay in delays.values())
    assert max(delays.values()) - min(delays.values()) > 0.4 * longest


def test_a_job_that_gives_up_before_another_one_may_wait_longer_than_it() -> None:
    drawn = [(due_of(str(uid), 5), delay_of(str(uid), 5)) for uid in range(20)]
    assert any(due < other and delay > others for due, delay in drawn for other, others in drawn)
