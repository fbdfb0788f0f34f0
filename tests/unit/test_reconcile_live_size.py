"""Another number of trainers without a restart: pods follow what the coordinator says of its world."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coxswain.wire import SizeReply
from coxswain_operator.children.configuration import JOB
from coxswain_operator.reconcile import live_size
from coxswain_operator.reconcile.actions import RequeueAt, Sizing, WriteStatus
from coxswain_operator.reconcile.member_failures import MISSED_SECONDS
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import Event, Manifest
from tests.unit.fake_cluster import FakeCluster, live, member_of, report, training_job, with_job
from tests.unit.reconcile_scenes import GANG, NOW, Scene, condition, ended
from tests.unit.test_reconcile_attempt import config_map
from tests.unit.test_reconcile_lifecycle import RESTART_JOB, passes, running
from tests.unit.test_reconcile_properties import Watched
from tests.unit.test_reconcile_resize import leave, scale, trainers

ONE_LOADER = {"coordinator", "loader-0"}


class World:
    """What a coordinator knows: its world has the asked number as soon as the pods of those trainers run."""

    def __init__(self, cluster: FakeCluster, size: int) -> None:
        self.cluster, self.target, self.slow = cluster, size, False
        self._size = size
        cluster.reply_to_size, cluster.size_reported = self.reply, lambda: self.target

    @property
    def missing(self) -> list[str]:
        here = {member_of(p) for p in self.cluster.pods() if p["status"]["phase"] == "Running"}
        return [f"trainer-{i}" for i in range(self.target) if f"trainer-{i}" not in here]

    @property
    def size(self) -> int:
        if not (self.missing or self.slow):
            self._size = self.target
        return self._size

    def reply(self, trainers: int) -> SizeReply:
        self.target = trainers
        if self.size == trainers:
            return SizeReply("Done", trainers)
        return SizeReply("UnderWay", self.size, f"waiting for {', '.join(self.missing) or 'a step'}")


async def live_world(count: int = 2, **spec: Any) -> tuple[FakeCluster, World]:
    cluster = await running(**{"trainers": trainers(count), **spec})
    return cluster, World(cluster, count)


def members(cluster: FakeCluster) -> set[str]:
    return {member_of(p) for p in cluster.pods() if live(p) and "deletionTimestamp" not in p["metadata"]}


def uids(cluster: FakeCluster) -> dict[str, str]:
    return {member_of(p): p["metadata"]["uid"] for p in cluster.pods()}


def size_of(cluster: FakeCluster) -> Manifest:
    found: Manifest = cluster.job["status"]["trainers"]
    return found


async def test_a_job_grows_by_new_pods_beside_those_that_go_on() -> None:
    cluster, world = await live_world()
    before = uids(cluster)
    scale(cluster, 4)
    await passes(cluster, 2)
    assert members(cluster) == ONE_LOADER | {f"trainer-{i}" for i in range(4)}
    assert (cluster.condition("Progressing")["status"], cluster.state) == ("True", "Running")
    assert (
        "trains with 2 trainers, 4 are asked for: waiting for trainer-2, trainer-3"
        in cluster.condition("Progressing")["message"]
    )
    cluster.run_all()
    await passes(cluster)
    assert {m: uids(cluster)[m] for m in before} == before and world.size == 4
    status = cluster.job["status"]
    assert (status["attempt"], status["ready"], cluster.calls, cluster.deleted) == (0, "4/4", [], [])
    assert size_of(cluster) == {"ready": 4, "desired": 4, "asked": 4, "configured": 2}
    assert [e.message for e in cluster.events if e.reason == "Scaled"] == ["from 2 to 4 trainers, without a restart"]


async def test_a_job_shrinks_only_after_its_world_and_grows_again_under_new_names() -> None:
    cluster, world = await live_world(4)
    before, world.slow = uids(cluster), True
    scale(cluster, 2)
    await passes(cluster)
    assert uids(cluster) == before and cluster.condition("Progressing")["status"] == "True"
    world.slow = False
    await passes(cluster)
    assert members(cluster) == ONE_LOADER | {"trainer-0", "trainer-1"}
    assert {member_of(p) for p in cluster.deleted} == {"trainer-2", "trainer-3"}
    scale(cluster, 3)
    await passes(cluster, 2)
    cluster.run_all()
    await passes(cluster)
    status = cluster.job["status"]
    assert cluster.created[-1] == "demo-trainer-2-1" and status["ready"] == "3/3"
    assert (status["restarts"], status["attempt"]) == ({"counted": 0, "ignored": 0}, 0)
    assert {m: uids(cluster)[m] for m in ("coordinator", "loader-0", "trainer-0", "trainer-1")} == {
        m: before[m] for m in ("coordinator", "loader-0", "trainer-0", "trainer-1")
    }


async def test_a_trainer_that_is_let_go_and_wanted_again_and_again_has_not_failed() -> None:
    """Its first failure is its first: it restarts that trainer alone, and at once."""
    cluster, _ = await live_world(4)
    for count in 3, 4, 3, 4, 3, 4:
        scale(cluster, count)
        await passes(cluster, 2)
        cluster.run_all()
        await passes(cluster)
    assert cluster.created[-1] == "demo-trainer-3-3"
    others = {name: uid for name, uid in uids(cluster).items() if name != "trainer-3"}
    cluster.end(cluster.pod("trainer-3") or {}, 1)
    await passes(cluster, 2)
    cluster.tick(1.5)  # the delay of one replacement
    await passes(cluster, 2)
    assert cluster.created[-1] == "demo-trainer-3-4" and cluster.job["status"]["attempt"] == 0
    assert {name: uid for name, uid in uids(cluster).items() if name != "trainer-3"} == others


async def test_a_smaller_number_that_is_taken_back_before_the_world_has_it_is_taken_back_from_the_coordinator_too() -> (
    None
):
    cluster, world = await live_world(4)
    before, world.slow = uids(cluster), True
    for count in 2, 4:
        scale(cluster, count)
        await passes(cluster, 2)
    assert world.target == 4
    world.slow = False
    await passes(cluster)
    assert (world.size, uids(cluster), cluster.job["status"]["attempt"]) == (4, before, 0)
    cluster.sizes_asked.clear()
    await passes(cluster)
    assert cluster.sizes_asked == []


@pytest.mark.parametrize(("size", "again"), [(4, True), (2, False), (0, False)])
async def test_a_trainer_that_was_let_go_and_is_wanted_again_gets_another_pod(size: int, again: bool) -> None:
    """It had left for a smaller number, which was taken back before the operator saw that it was done."""
    cluster, _ = await live_world(4)
    before = uids(cluster)
    cluster.size_reported = lambda: size
    cluster.end(cluster.pod("trainer-3") or {}, 0)
    await passes(cluster)
    assert uids(cluster) == before
    cluster.tick(MISSED_SECONDS)
    await passes(cluster)
    assert (cluster.created[-1] == "demo-trainer-3-1") == again
    assert cluster.job["status"]["restarts"] == {"counted": 0, "ignored": int(again)}


async def test_a_trainer_that_leaves_before_its_pod_was_created_gets_none() -> None:
    cluster, _ = await live_world()
    created = list(cluster.created)
    for count in 3, 2:
        scale(cluster, count)
        await passes(cluster, 1)
    assert (size_of(cluster)["desired"], cluster.created) == (2, created)


async def test_a_pod_that_the_world_has_taken_in_stays_in_the_pass_that_says_so() -> None:
    cluster, world = await live_world()
    scale(cluster, 3)
    await passes(cluster, 2)
    cluster.run_all()
    assert world.size == 3
    status = cluster.job["status"]
    status["trainers"] |= {"desired": 2, "asked": 2}  # as a coordinator that moved while the operator was away
    await passes(cluster, 1)
    assert (size_of(cluster)["desired"], cluster.deleted) == (3, [])


async def test_a_coordinator_that_refuses_is_asked_to_save_and_the_reason_is_said() -> None:
    cluster, _ = await live_world()
    cluster.reply_to_size = lambda n: SizeReply("Refused", 2, "parallelism.layout names every replica")
    scale(cluster, 4)
    await passes(cluster)
    assert ("scaled to 4 trainers", -1) in cluster.calls
    assert "(parallelism.layout names every replica)" in cluster.condition("Progressing")["message"]
    leave(cluster)
    await passes(cluster, 6)
    assert cluster.job["status"]["attempt"] == 1


async def test_a_coordinator_that_does_not_answer_once_is_asked_again_and_not_stopped() -> None:
    cluster, world = await live_world()
    cluster.reply_to_size = lambda n: None
    scale(cluster, 3)
    await passes(cluster, 2)
    assert cluster.calls == [] and "asks the coordinator" in cluster.condition("Progressing")["message"]
    cluster.reply_to_size = world.reply
    await passes(cluster, 2)
    assert "trainer-2" in members(cluster) and cluster.job["status"]["attempt"] == 0


async def test_a_queue_of_plain_pods_makes_another_group_for_another_number() -> None:
    queue = {"queueing": {"backend": "Kueue", "queueName": "research"}}
    cluster, _ = await live_world(scheduling=queue)
    scale(cluster, 3)
    await passes(cluster, 2)
    assert cluster.sizes_asked == [] and ("scaled to 3 trainers", -1) in cluster.calls


async def test_a_world_that_is_lost_while_it_changes_its_size_restarts_no_pod() -> None:
    cluster, world = await live_world(4)
    world.slow, before = True, uids(cluster)
    scale(cluster, 2)
    await passes(cluster)
    cluster.report_now = report("Starting", 10)
    await passes(cluster, 6)
    assert uids(cluster) == before and cluster.job["status"]["attempt"] == 0
    cluster.report_now, world.slow = report("Running", 11), False
    await passes(cluster)
    assert members(cluster) == ONE_LOADER | {"trainer-0", "trainer-1"}


async def test_a_coordinator_that_starts_again_learns_the_size_that_its_configuration_does_not_name() -> None:
    cluster, world = await live_world()
    scale(cluster, 3)
    await passes(cluster, 2)
    cluster.run_all()
    await passes(cluster)
    cluster.end(cluster.pod("coordinator") or {}, 1)
    cluster.sizes_asked.clear()
    again = World(cluster, 2)
    await passes(cluster)
    cluster.run_all()
    await passes(cluster)
    assert set(cluster.sizes_asked) == {3} and again.size == world.size == 3 and cluster.job["status"]["attempt"] == 0


async def began_smaller() -> FakeCluster:
    """A job of four trainers that has begun with the three for which there is room."""
    cluster = with_job(trainers={**trainers(4), "minCount": 2})
    cluster.unplaceable = {"trainer-3"}
    await passes(cluster)
    cluster.run_all()
    cluster.tick(910)
    await passes(cluster, 6)
    cluster.run_all()
    return cluster


async def test_a_job_that_began_with_too_few_trainers_grows_when_there_is_room() -> None:
    cluster = await began_smaller()
    cluster.report_now, world = report("Running", 10), World(cluster, 3)
    await passes(cluster, 2)
    assert (cluster.job["status"]["attempt"], size_of(cluster)["desired"]) == (1, 3)
    cluster.tick(live_size.REGROW_SECONDS)
    await passes(cluster, 2)
    cluster.run_all()
    cluster.tick(2000)  # no room for a long time: nothing restarts
    await passes(cluster, 4)
    assert (cluster.state, cluster.condition("Degraded")["reason"]) == ("Running", "CapacityLost")
    assert cluster.condition("Degraded")["message"].startswith("runs with 3 of 4 trainers")
    cluster.unplaceable = set()
    cluster.run(cluster.pod("trainer-3") or {})
    await passes(cluster)
    assert (world.size, cluster.job["status"]["ready"], cluster.job["status"]["attempt"]) == (4, "4/4", 1)
    assert cluster.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize("phase", ["Running", "Starting"])
async def test_a_number_that_a_smaller_start_has_already_restarts_nothing_and_is_no_lack_of_room(phase: str) -> None:
    cluster = await began_smaller()
    cluster.report_now, _ = report(phase, 10), World(cluster, 3)
    await passes(cluster, 2)
    before = uids(cluster)
    scale(cluster, 3)
    await passes(cluster)
    assert size_of(cluster) == {"ready": 3, "desired": 3, "asked": 3}
    assert cluster.condition("Degraded")["reason"] == "AsExpected"
    cluster.sizes_asked.clear()
    cluster.report_now = report("Starting", 10)
    cluster.tick(1000)  # a world that takes long to form
    await passes(cluster)
    assert (cluster.sizes_asked, uids(cluster), cluster.job["status"]["attempt"]) == ([], before, 1)


async def test_a_job_that_trains_with_the_trainers_that_are_left_is_degraded_and_not_restarted() -> None:
    cluster, _ = await live_world(4)
    before = uids(cluster)
    cluster.end(cluster.pod("trainer-3") or {}, 137, disrupted=True)
    cluster.unplaceable = {"trainer-3"}
    await passes(cluster)
    cluster.run_all()
    for phase in ("Running", "Starting", "Running"):  # another world is lost meanwhile, and forms again
        cluster.tick(1000)
        cluster.report_now = report(phase, 20)
        await passes(cluster)
    assert (cluster.state, cluster.condition("Degraded")["reason"]) == ("Running", "CapacityLost")
    assert cluster.condition("Degraded")["message"].startswith("runs with 3 of 4 trainers")
    status = cluster.job["status"]
    assert (status["attempt"], status["restarts"]["counted"]) == (0, 0)
    assert {m: uids(cluster)[m] for m in before if m != "trainer-3"} == {
        m: u for m, u in before.items() if m != "trainer-3"
    }


async def test_pods_that_are_all_replaced_at_once_read_the_number_that_the_job_has_by_then() -> None:
    cluster, _ = await live_world()
    scale(cluster, 4)
    await passes(cluster, 2)
    cluster.run_all()
    await passes(cluster)
    assert size_of(cluster)["configured"] == 2
    for pod in list(cluster.pods()):
        cluster.vanish(pod)
    await passes(cluster)
    assert size_of(cluster) == {"ready": 0, "desired": 4, "asked": 4}
    assert json.loads(cluster.objects["ConfigMap", config_map(cluster)]["data"][JOB])["trainers"] == 4


async def test_the_budget_of_disruptions_follows_the_number_of_trainers() -> None:
    cluster, _ = await live_world()
    scale(cluster, 3)
    await passes(cluster, 2)
    cluster.run_all()
    await passes(cluster)
    assert cluster.objects["PodDisruptionBudget", "demo"]["spec"]["minAvailable"] == 4


live_scalings = st.lists(
    st.one_of(
        st.tuples(st.just("scale"), st.integers(1, 4)),
        st.tuples(st.just("crash"), st.integers(0, 14)),
        st.tuples(st.sampled_from(["slow", "quick", "lost", "train", "mute", "pass"]), st.just(0)),
    ),
    max_size=25,
)


class Healthy(Watched):
    """Only trainers beyond the world's size may be deleted: nothing else is restarted."""

    world: World

    async def delete(self, kind: str, namespace: str, name: str, uid: str = "", force: bool = False) -> None:
        pod = self.objects.get((kind, name))
        if kind == "Pod" and pod is not None:
            role, _, index = member_of(pod).partition("-")
            assert role == "trainer" and int(index) >= self.world.size, f"{name} worked, and was deleted"
        await FakeCluster.delete(self, kind, namespace, name, uid, force)


@given(live_scalings)
@example([("scale", 3), ("scale", 2), ("scale", 3)])
@example([("slow", 0), ("scale", 1), ("scale", 2)])
@settings(max_examples=60)
def test_scaling_live_at_any_moment_with_crashes_restarts_no_pod_and_ends_with_the_last_count(
    what: list[tuple[str, int]],
) -> None:
    async def scenario() -> None:
        cluster, count = Healthy(trainers=trainers(2)), 2
        cluster.world = world = World(cluster, 2)
        await Watched.settle(cluster)
        cluster.report_now = report("Running", 10)
        await cluster.one_pass()
        for verb, number in what:
            match verb:
                case "scale":
                    count = number
                    scale(cluster, number)
                case "slow" | "quick":
                    world.slow = verb == "slow"
                case "mute":
                    cluster.reply_to_size = lambda _: None
                case "lost" | "train":
                    cluster.report_now = report("Running" if verb == "train" else "Starting", 10)
                    cluster.reply_to_size = world.reply
            await cluster.one_pass(number if verb == "crash" else -1)
            cluster.reap()
            cluster.run_all()
            cluster.tick()
        cluster.report_now, world.slow, cluster.reply_to_size = report("Running", 20), False, world.reply
        for _ in range(12):
            await cluster.one_pass()
            cluster.reap()
            cluster.run_all()
            cluster.tick()
        assert members(cluster) == ONE_LOADER | {f"trainer-{i}" for i in range(count)} and world.size == count
        status = cluster.job["status"]
        assert (status["attempt"], status["restarts"]["counted"]) == (0, 0) and cluster.calls == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("spec", "phase", "asked", "wanted"),
    [
        ({}, "Running", 2, 0),
        ({"trainers": trainers(3)}, "Running", 2, 3),
        ({"trainers": trainers(3)}, "Starting", 2, 0),
        ({"trainers": trainers(3), "suspend": True}, "Running", 2, 0),
        ({"trainers": trainers(3)}, "Running", 3, 3),  # began with two of them
    ],
)
def test_a_coordinator_is_asked_while_it_trains_and_has_another_number(
    spec: Manifest, phase: str, asked: int, wanted: int
) -> None:
    job = training_job(**spec)
    job["status"] = {"trainers": {"desired": 2, "asked": asked}}
    assert live_size.wanted(job, report(phase), 1000.0) == wanted
    assert live_size.wanted(job, None, 1000.0) == 0


def test_a_coordinator_is_asked_for_no_number_before_its_start_has_one() -> None:
    """It is of the start before, and about to go."""
    job = training_job(trainers=trainers(3))
    job["status"] = {"trainers": {"desired": 0, "asked": 0}}
    assert live_size.wanted(job, report("Running"), 1000.0) == 0


@pytest.mark.parametrize(("trained", "wanted"), [(59, 0), (60, 3)])
def test_a_job_that_began_with_too_few_trainers_asks_for_the_others_in_its_sixtieth_second(
    trained: int, wanted: int
) -> None:
    job = training_job(trainers=trainers(3))
    attempts = [{"number": 0, "start": stamp(100.0), "end": stamp(900.0)}, {"number": 1, "start": stamp(1000.0)}]
    job["status"] = {"trainers": {"desired": 2, "asked": 3}, "attempts": attempts}
    assert live_size.wanted(job, report("Running"), 1000.0 + trained) == wanted


@pytest.mark.parametrize("ending", ["True", "False", "deleted"])
def test_a_job_that_has_ended_or_is_deleted_is_asked_for_no_other_number(ending: str) -> None:
    job = training_job(trainers=trainers(3))
    job["status"] = {"trainers": {"desired": 2, "asked": 2}}
    assert live_size.wanted(job, report("Running"), 1000.0) == 3
    if ending == "deleted":
        job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    else:
        job["status"]["conditions"] = [condition("Succeeded", ending)]
    assert live_size.wanted(job, report("Running"), 1000.0) == 0


@pytest.mark.parametrize(("reply", "seconds"), [(SizeReply("UnderWay", 2), 2), (SizeReply("Refused", 0), 600)])
def test_a_pass_is_due_while_the_coordinator_moves_and_when_its_time_to_save_is_over(
    reply: SizeReply, seconds: int
) -> None:
    scene = Scene(GANG, report("Running", 10), spec={"trainers": trainers(3)}, sizing=Sizing(3, reply))
    assert RequeueAt(NOW + seconds) in scene.decide().of(RequeueAt)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (SizeReply("Refused", 2, "no layout"), "no layout"),
        (SizeReply("UnderWay", 2, "trainer-2 registers"), ""),
        (SizeReply("Done", 3, "x"), ""),
        (None, ""),
    ],
)
def test_only_a_refusal_is_said_to_be_why_a_job_must_restart(reply: SizeReply | None, why: str) -> None:
    assert live_size.refusal(Scene(sizing=Sizing(3, reply)).context()) == why
    assert live_size.refusal(Scene().context()) == ""


@pytest.mark.parametrize("state", ["UnderWay", "Done", "Refused", None])
def test_only_a_size_that_is_under_way_is_said_to_be_waited_for(state: Any) -> None:
    reply = SizeReply(state, 2, "trainer-2 registers") if state else None
    text = "trains with 2 trainers, 3 are asked for: trainer-2 registers"
    assert live_size.message(Scene(sizing=Sizing(3, reply)).context()) == text * (state == "UnderWay")


def test_a_pass_is_due_when_a_job_that_began_with_too_few_trainers_asks_for_the_others() -> None:
    attempts = [{"number": 0, "start": stamp(NOW - 10)}]
    few = {"trainers": {"desired": 1, "asked": 2}, "attempts": attempts}
    assert RequeueAt(NOW + 50) in Scene(GANG[:3], report("Running", 10), status=few).decide().of(RequeueAt)


@pytest.mark.parametrize(("phase", "reason"), [("Running", "CapacityLost"), ("Starting", "AsExpected")])
def test_only_a_job_that_trains_can_have_lost_the_room_for_a_trainer(phase: str, reason: str) -> None:
    waits = replace(GANG[3], phase="Pending", ready=False, unscheduled_reason="Unschedulable", created=NOW - 5)
    (write,) = Scene((*GANG[:3], waits), report(phase, 10)).decide().of(WriteStatus)
    (degraded,) = (c for c in write.status["conditions"] if c["type"] == "Degraded")
    assert degraded["reason"] == reason


def test_a_restart_of_the_whole_job_takes_no_size_from_the_coordinator_that_goes() -> None:
    lost = (*GANG[:-1], ended(7))
    spec = {"trainers": trainers(3), "failurePolicy": {"rules": [RESTART_JOB]}}
    decision = Scene(lost, report("Running", 10), spec=spec, sizing=Sizing(3, SizeReply("Done", 3))).decide()
    (write,) = decision.of(WriteStatus)
    assert write.status["trainers"]["desired"] == 0 and write.status["attempt"] == 1
    assert "Scaled" not in [e.reason for e in decision.of(Event)]
