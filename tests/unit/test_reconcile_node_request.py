"""A job that asks for another node beside everything else that happens to it."""

from __future__ import annotations

from dataclasses import replace
from dataclasses import replace as changed_settings

import pytest
from msgspec.structs import replace as changed

from coxswain.names import LABEL_INCARNATION, LABEL_JOB_UID
from coxswain.wire import NodeRequest
from coxswain_operator.controller import Controller
from coxswain_operator.reconcile import node_request, quarantine, reconcile
from coxswain_operator.reconcile.actions import EndQuarantine, Quarantine
from coxswain_operator.reconcile.context import build_context
from coxswain_operator.reconcile.status import KeptNode, read_status
from coxswain_operator.reconcile.times import seconds, stamp
from coxswain_operator.views import Event, PodView, QuarantineView
from tests.unit.fake_cluster import NAMESPACE, FakeCluster, copied, report
from tests.unit.reconcile_scenes import GANG, NOW, TRAINER, Scene, ended
from tests.unit.test_reconcile_lifecycle import RESTART_JOB
from tests.unit.test_reconcile_quarantine import (
    SETTINGS,
    SLOW,
    asking,
    avoided,
    left_for_another,
    new_world,
    node,
    passes,
    put,
    quarantine_of,
    quarantined,
    running,
    said,
)


async def test_moving_a_trainer_and_keeping_it_are_warnings() -> None:
    for spare, reason in ((True, "NodeQuarantined"), (False, "NodeKept")):
        world = await asking()
        if spare:
            node(world, "spare")
        await passes(world, 3)
        assert [e.warning for e in world.events if e.reason == reason] == [True]


@pytest.mark.parametrize(("phase", "leaves"), [("Failed", True), ("Running", False)])
async def test_a_former_pod_takes_room_on_the_other_node_until_it_has_ended(phase: str, leaves: bool) -> None:
    template = {"spec": {"containers": [{"name": "trainer", "resources": {"requests": {"cpu": "2"}}}]}}
    world = await asking(trainers={"count": 2, "template": template})
    node(world, "spare", cpu="3")
    former = copied(world.pod("trainer-0") or {})
    former["metadata"] |= {"name": "former", "uid": "f", "deletionTimestamp": stamp(world.now), "finalizers": ["a/b"]}
    former["metadata"]["labels"][LABEL_INCARNATION] = "7"
    former["spec"]["nodeName"], former["status"]["phase"] = "spare", phase
    world.objects["Pod", "former"] = former
    await passes(world, 3)
    assert quarantined(world) == [SLOW.node] * leaves


@pytest.mark.parametrize(("pod", "leaves"), [(TRAINER, True), (ended(0), False), (ended(3), False)])
def test_only_a_trainer_that_still_runs_is_moved_off_its_node(pod: PodView, leaves: bool) -> None:
    """One that has left, as its coordinator announced, needs no other node."""
    made = QuarantineView("n1", "q", "n1", created=NOW, job="u")
    observed = replace(Scene((replace(pod, node="n1"),)).observed, quarantines=(made,))
    assert quarantine.left(build_context(observed, NOW, SETTINGS)) == ({"trainer-1"} if leaves else set())


async def test_a_long_reason_is_cut_to_what_the_status_can_hold() -> None:
    world = await asking()
    world.report_now = report("Running", 20, replace_node=NodeRequest(SLOW.node, "trainer-1", "slow " * 1000))
    await passes(world, 3)
    assert len(world.job["status"]["keptNode"]["message"]) == 1024


HOUR = 3600.0
FOREIGN = [
    ("node-of-another-job", "trainer-1"),
    ("node-of-trainer-0", "trainer-1"),
    ("node-of-coordinator", "coordinator"),
    ("node-of-loader-0", "loader-0"),
    (SLOW.node, "trainer-7"),
    (SLOW.node, "foo-9"),
    (SLOW.node, ""),
    ("", "trainer-1"),
]


@pytest.mark.parametrize(("place", "trainer"), FOREIGN)
async def test_a_report_that_names_a_node_without_that_trainer_moves_nothing(place: str, trainer: str) -> None:
    world = await asking()
    node(world, "spare")
    world.report_now = report("Running", 20, replace_node=NodeRequest(place, trainer, "says the job"))
    await passes(world, 3)
    assert (quarantined(world), said(world, "NodeKept"), world.job["status"].get("keptNode")) == ([], [], None)


@pytest.mark.parametrize(("left", "kept"), [(1, True), (0, False)])
def test_a_node_that_stayed_is_forgotten_in_its_second(left: int, kept: bool) -> None:
    node_ = KeptNode(node="n", message="", until=stamp(NOW + left))
    status = changed(read_status(Scene().observed.job), kept_node=node_)
    assert (node_request.settled(Scene().context(), status).kept_node == node_) is kept


async def restarts(world: FakeCluster) -> None:
    world.end(world.pod("trainer-0") or {}, 7)


async def is_scaled(world: FakeCluster) -> None:
    world.edit("TrainingJob", "demo", trainers={"count": 3})


async def is_released(world: FakeCluster) -> None:
    """The other trainer has found no node in time."""
    world.unplaceable = {"trainer-0"}
    world.vanish(world.pod("trainer-0") or {})
    await passes(world, 2)
    world.run_all()
    world.tick(3000)


@pytest.mark.parametrize("how", [restarts, is_scaled, is_released])
async def test_a_start_of_all_pods_gives_a_trainer_on_a_node_in_quarantine_no_number_of_its_own(how) -> None:
    world = new_world(failurePolicy={"rules": [RESTART_JOB]})
    await passes(world)
    world.run_all()
    await how(world)
    quarantine_of(world, "node-of-trainer-1", world.job["metadata"]["uid"])
    await passes(world, 1)
    assert [entry["name"] for entry in world.job["status"]["incarnations"]] == ["all"]
    assert said(world, "PodDisrupted") == [] or how is is_released


async def test_a_quarantine_that_is_over_makes_room_for_the_next_one_in_the_same_pass() -> None:
    world = await asking()
    node(world, "spare")
    meta = {"name": "elsewhere", "labels": {LABEL_JOB_UID: "another"}}
    over = {"node": "elsewhere", "reason": "Slow", "until": stamp(world.now - 1)}
    world.put({"kind": "NodeQuarantine", "metadata": meta, "spec": over})
    await passes(world, 1)
    assert quarantined(world) == [SLOW.node] and len(said(world, "NodeQuarantined")) == 1


async def test_a_quarantine_is_made_within_the_installations_limit() -> None:
    """Another job's pass may make one between the look and the making."""
    world = await asking()
    node(world, "spare")
    controller = Controller(world, world, world.clock, changed_settings(SETTINGS, quarantine_limit=3))
    decision = await controller.pass_once(NAMESPACE, "demo")
    assert decision is not None and [q.limit for q in decision.of(Quarantine) if isinstance(q, Quarantine)] == [3]


async def test_a_trainer_leaves_a_node_in_quarantine_once_the_start_of_all_is_over() -> None:
    world = await running()
    quarantine_of(world, "node-of-trainer-1", world.job["metadata"]["uid"])
    await passes(world)
    assert [entry["name"] for entry in world.job["status"]["incarnations"]] == ["trainer-1"]


async def test_a_quarantine_is_over_in_its_second() -> None:
    world = new_world()
    put(world, "over", until=stamp(world.now))
    put(world, "bad", until=stamp(world.now + 1))
    await passes(world, 1)
    assert avoided(world, "trainer-0") == {"bad"}


async def test_a_node_that_is_used_again_is_asked_about_again_an_hour_later() -> None:
    world = await left_for_another()
    world.tick(node_request.PATIENCE_SECONDS + 1)
    await passes(world, 1)
    assert seconds(world.job["status"]["keptNode"]["until"]) == world.now - 1 + 3600


async def test_a_job_that_asks_about_a_node_in_quarantine_is_not_answered_again() -> None:
    world = await asking()
    node(world, "spare")
    quarantine_of(world, SLOW.node, "another")
    await passes(world, 3)
    assert (quarantined(world), said(world, "NodeKept"), world.job["status"].get("keptNode")) == ([SLOW.node], [], None)


@pytest.mark.parametrize(("waited", "nodes"), [(599, ["elsewhere"]), (600, ["elsewhere", SLOW.node])])
async def test_the_pause_between_two_quarantines_is_over_in_its_second(waited: int, nodes: list[str]) -> None:
    world = await asking()
    node(world, "spare")
    quarantine_of(world, "elsewhere", "another")
    world.tick(waited)
    await passes(world, 1, changed_settings(SETTINGS, quarantine_limit=9))
    assert quarantined(world) == nodes


@pytest.mark.parametrize(("early", "nodes"), [(1, [SLOW.node]), (0, [])])
async def test_a_trainer_without_a_node_has_waited_long_enough_in_the_second_of_the_pass_that_is_due(
    early: int, nodes: list[str]
) -> None:
    world = await left_for_another()
    created = seconds((world.pod("trainer-1") or {})["metadata"]["creationTimestamp"])
    world.tick(created + node_request.PATIENCE_SECONDS - early - world.now)
    await passes(world, 1)
    assert quarantined(world) == nodes


@pytest.mark.parametrize("ahead", [-600, 600])
async def test_a_trainer_waits_for_another_node_as_long_however_far_the_servers_clock_is_off(ahead: int) -> None:
    world = await left_for_another()
    operator = Controller(world, world, world.clock, SETTINGS)
    created = world.pod("trainer-1")["metadata"]["creationTimestamp"]
    world.pod("trainer-1")["metadata"]["creationTimestamp"] = stamp(seconds(created) + ahead)
    await operator.pass_once(NAMESPACE, "demo")
    world.tick(node_request.PATIENCE_SECONDS - 10)
    await operator.pass_once(NAMESPACE, "demo")
    assert quarantined(world) == [SLOW.node]
    world.tick(10)
    await operator.pass_once(NAMESPACE, "demo")
    assert quarantined(world) == []


@pytest.mark.parametrize("ahead", [-HOUR, 0.0, HOUR])
@pytest.mark.parametrize(("waited", "nodes"), [(590, ["elsewhere"]), (600, ["elsewhere", SLOW.node])])
async def test_quarantines_are_ten_minutes_apart_however_far_the_servers_clock_is_from_the_operators(
    ahead: float, waited: int, nodes: list[str]
) -> None:
    world = await asking()
    node(world, "spare")
    quarantine_of(world, "elsewhere", "another")
    other = world.objects["NodeQuarantine", "elsewhere"]
    other["spec"]["until"] = stamp(world.now + node_request.QUARANTINE_SECONDS)
    other["metadata"]["creationTimestamp"] = stamp(world.now + ahead)
    world.tick(waited)
    await passes(world, 1, changed_settings(SETTINGS, quarantine_limit=9))
    assert quarantined(world) == nodes


def test_a_request_without_a_node_says_nothing_about_a_trainer_without_one() -> None:
    """As on the local cluster, whose pods have no nodes."""
    asked = report("Running", 20, replace_node=NodeRequest("", "trainer-1", "slow"))
    decision = Scene(GANG, asked, spec={"stragglers": {"action": "ReplaceNode"}}).decide()
    assert [event.reason for event in decision.of(Event) if event.reason == "NodeKept"] == []


@pytest.mark.parametrize(("left", "ends"), [(0, True), (1, False)])
def test_a_quarantine_of_the_operators_is_deleted_in_the_second_in_which_it_ends(left: int, ends: bool) -> None:
    made = QuarantineView("slow", "q", "slow", NOW - 100, until=NOW + left, job="u")
    decision = reconcile(replace(Scene(GANG).observed, quarantines=(made,)), NOW)
    assert decision.of(EndQuarantine) == ((EndQuarantine("slow", "q"),) if ends else ())
