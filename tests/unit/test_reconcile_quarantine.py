"""Nodes in quarantine: no new pod goes there, and a node that is admitted again is used at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coxswain.names import ANNOTATION_AVOIDS, API_VERSION, LABEL_JOB_UID
from coxswain.wire import NodeRequest
from coxswain_operator.children.scheduling import avoiding
from coxswain_operator.controller import Controller
from coxswain_operator.node_decoding import quarantine_view
from coxswain_operator.reconcile import node_request
from coxswain_operator.reconcile.times import seconds, stamp
from coxswain_operator.settings import Settings
from coxswain_operator.views import Manifest
from tests.unit.fake_cluster import NAMESPACE, FakeCluster, live, member_of, report, with_job

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SETTINGS = Settings(quarantine=True)
SLOW = NodeRequest("node-of-trainer-1", "trainer-1", "trainer-1 takes 3.0 times as long as planned")
CPU = {"hybridData": {"tokensPerReplica": 1024, "maxDegree": 4}, "hardware": "cpu"}


def fields(*nodes: str) -> list[Manifest]:
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]


def expression(value: str) -> Manifest:
    return {"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]}


@pytest.mark.parametrize(
    ("affinity", "terms"),
    [
        ({}, [{"matchFields": fields("a", "b")}]),
        ({"podAffinity": {"x": 1}}, [{"matchFields": fields("a", "b")}]),
        ({"nodeAffinity": {"preferred": []}}, [{"matchFields": fields("a", "b")}]),
        (
            {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [expression("x"), expression("y")]}}},
            [
                {**expression("x"), "matchFields": fields("a", "b")},
                {**expression("y"), "matchFields": fields("a", "b")},
            ],
        ),
        (
            {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": fields("c")}, {}]}}},
            [{"matchFields": fields("c", "a", "b")}, {}],  # an empty term matches no node, and goes on doing so
        ),
    ],
)
def test_every_alternative_of_a_pods_affinity_is_kept_off_the_nodes(affinity: Manifest, terms: list[Manifest]) -> None:
    before = {"containers": [], "affinity": affinity}
    after = avoiding(before, ("a", "b"))["affinity"]
    assert after["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == terms
    others = {k: v for k, v in after["nodeAffinity"].items() if k != REQUIRED}
    assert {**after, "nodeAffinity": others} == {"nodeAffinity": {}, **affinity} | (
        {"nodeAffinity": {k: v for k, v in affinity["nodeAffinity"].items() if k != REQUIRED}}
        if "nodeAffinity" in affinity
        else {}
    )
    assert avoiding(before, ()) is before


def put(world: FakeCluster, node: str, name: str = "", **spec: Any) -> None:
    body = {"node": node, "reason": "Slow", **spec}
    world.put({"apiVersion": API_VERSION, "kind": "NodeQuarantine", "metadata": {"name": name or node}, "spec": body})


def admit(world: FakeCluster, name: str, *finalizers: str) -> None:
    """Deletes its quarantine. With finalizers the object stays, and is being deleted."""
    if finalizers:
        world.objects["NodeQuarantine", name]["metadata"] |= {
            "finalizers": finalizers,
            "deletionTimestamp": stamp(1000),
        }
    else:
        del world.objects["NodeQuarantine", name]


async def passes(world: FakeCluster, count: int = 4, settings: Settings = SETTINGS) -> None:
    for _ in range(count):
        await Controller(world, world, world.clock, settings).pass_once(NAMESPACE, "demo")
        world.tick()
        world.reap()


def avoided(world: FakeCluster, member: str) -> set[str]:
    """Nodes that the member's pod is kept off, by its affinity; its annotation says the same."""
    pod = world.pod(member)
    assert pod is not None
    terms = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED, {}).get("nodeSelectorTerms", [])
    found = {value for term in terms for field in term["matchFields"] for value in field["values"]}
    assert ",".join(sorted(found)) == pod["metadata"]["annotations"].get(ANNOTATION_AVOIDS, "")
    return found


def new_world(**spec: Any) -> FakeCluster:
    return with_job(parallelism=CPU, **spec)


async def running(**spec: Any) -> FakeCluster:
    world = new_world(**spec)
    await passes(world)
    world.run_all()
    world.report_now = report("Running", 10)
    await passes(world)
    return world


async def test_no_new_pod_of_any_role_goes_to_a_node_in_quarantine_and_running_pods_stay() -> None:
    world = await running()
    before = {p["metadata"]["uid"] for p in world.pods()}
    put(world, "bad")
    put(world, "worse", "ticket-7")
    await passes(world)
    assert {p["metadata"]["uid"] for p in world.pods()} == before
    for member in ("trainer-1", "loader-0"):
        world.vanish(world.pod(member) or {})
    await passes(world)
    assert avoided(world, "trainer-1") == avoided(world, "loader-0") == {"bad", "worse"}
    assert avoided(world, "trainer-0") == set()


async def test_without_the_installations_switch_no_quarantine_is_read() -> None:
    world = new_world()
    put(world, "bad")
    await passes(world, settings=Settings())
    assert avoided(world, "trainer-0") == set()


@pytest.mark.parametrize("how", ["deleted", "kept by a finalizer", "over"])
async def test_pods_that_wait_for_a_node_are_replaced_once_one_is_admitted_again(how: str) -> None:
    world = new_world()
    put(world, "bad", until=stamp(world.now + 120))
    put(world, "worse")
    world.unplaceable = {"trainer-1"}
    await passes(world)
    world.run_all()
    await passes(world)
    assert len(world.created) == 4
    if how == "over":
        world.tick(120)
    else:
        admit(world, "bad", *(["foregroundDeletion"] if how != "deleted" else []))
    await passes(world, 3)
    assert world.created[4:] == ["demo-trainer-1-1"]  # the others run, and stay
    assert avoided(world, "trainer-1") == {"worse"}
    assert world.job["status"]["restarts"] == {"counted": 0, "ignored": 0}


async def test_a_pod_that_waits_for_a_node_is_kept_when_yet_another_node_is_quarantined() -> None:
    """Its successor would wait at the end of the scheduler's queue, for fewer nodes."""
    world = new_world()
    put(world, "bad")
    world.unplaceable = {"trainer-1"}
    await passes(world)
    world.run_all()
    put(world, "worse")
    await passes(world, 3)
    assert (len(world.created), avoided(world, "trainer-1")) == (4, {"bad"})


async def test_a_pod_that_waits_for_a_queue_is_left_alone() -> None:
    world = new_world()
    put(world, "bad")
    await passes(world)
    for pod in world.pods():
        world.unschedulable(pod, "SchedulingGated")
    admit(world, "bad")
    await passes(world)
    assert len(world.created) == 4


async def test_the_end_of_a_quarantine_wakes_a_pass() -> None:
    world = await running()
    put(world, "bad", until=stamp(world.now + 300))
    decision = await Controller(world, world, world.clock, SETTINGS).pass_once(NAMESPACE, "demo")
    assert world.now + 300 in {getattr(a, "time", 0.0) for a in (decision.actions if decision else ())}


@pytest.mark.parametrize(
    ("until", "end"), [(None, float("inf")), ("2026-02-30T00:00:00Z", float("inf")), (stamp(5000), 5000.0)]
)
def test_a_quarantine_without_an_end_that_a_calendar_has_stays(until: str | None, end: float) -> None:
    meta = {"name": "a", "uid": "u", "creationTimestamp": stamp(1000), "labels": {LABEL_JOB_UID: "j"}}
    view = quarantine_view({"metadata": meta, "spec": {"node": "n", "until": until}})
    assert (view.until, view.node, view.job, view.created) == (end, "n", "j", 1000.0)


# --- a job that asks for another node ----------------------------------------------------------------------------------


def node(world: FakeCluster, name: str, ready: str = "True", cpu: str = "8", **spec: Any) -> None:
    stored = world.put({"kind": "Node", "metadata": {"name": name}, "spec": spec})
    stored["status"] = {
        "conditions": [{"type": "Ready", "status": ready}],
        "allocatable": {"cpu": cpu, "memory": "64Gi"},
    }


async def asking(action: str = "ReplaceNode", **spec: Any) -> FakeCluster:
    world = await running(stragglers={"action": action}, **spec)
    for pod in world.pods():
        node(world, pod["spec"]["nodeName"], cpu="0")
    world.report_now = report("Running", 20, replace_node=SLOW)
    return world


def quarantined(world: FakeCluster) -> list[str]:
    return [o["spec"]["node"] for (kind, _), o in world.objects.items() if kind == "NodeQuarantine"]


def said(world: FakeCluster, reason: str) -> list[str]:
    return [e.message for e in world.events if e.reason == reason]


async def test_a_slow_node_is_left_by_its_trainer_alone_when_another_one_fits() -> None:
    world = await asking()
    node(world, "spare")
    before = {member_of(p): p["metadata"]["uid"] for p in world.pods()}
    await passes(world, 6)
    assert quarantined(world) == [SLOW.node]
    (made,) = (o for (kind, _), o in world.objects.items() if kind == "NodeQuarantine")
    assert made["spec"]["reason"] == "Slow" and SLOW.evidence in made["spec"]["evidence"]
    assert made["spec"]["until"] == stamp(world.now - 6 + node_request.QUARANTINE_SECONDS)
    after = {member_of(p): p["metadata"]["uid"] for p in world.pods() if live(p)}
    assert {m for m in before if before[m] != after[m]} == {"trainer-1"}
    numbers = world.job["status"]["incarnations"]
    assert [(e["name"], e["failures"]) for e in numbers] == [("trainer-1", 0)], "a move is no failure"
    assert avoided(world, "trainer-1") == {SLOW.node}
    assert world.job["status"]["restarts"]["counted"] == 0 and len(said(world, "NodeQuarantined")) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "no other node fits (3 too little cpu)"),
        ({"spare": {"ready": "False"}}, "1 not ready, 3 too little cpu"),
        ({"spare": {"ready": "Unknown"}}, "1 not ready"),
        ({"spare": {"unschedulable": True}}, "1 cordoned"),
        ({"spare": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}}, "1 tainted"),
        ({"limit": 0}, "0 of at most 0 nodes are in quarantine already"),
        ({"off": True}, "this installation quarantines no nodes"),
        ({"blind": True}, "the operator may not see nodes"),
        ({"broken": True}, "trainer-0 does not work: one change at a time"),
    ],
)
async def test_a_node_that_cannot_be_replaced_stays_and_the_job_says_why_once(change: Manifest, why: str) -> None:
    template = {"spec": {"containers": [{"name": "trainer", "resources": {"requests": {"cpu": "2"}}}]}}
    world = await asking(trainers={"count": 2, "template": template})
    if "spare" in change:
        node(world, "spare", **change["spare"])
    elif "blind" in change:
        world.objects = {k: o for k, o in world.objects.items() if k[0] != "Node"}
    elif change:
        node(world, "spare")
    if "broken" in change:
        pod = world.pod("trainer-0")
        assert pod is not None
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    settings = replace(SETTINGS, quarantine="off" not in change, quarantine_limit=change.get("limit", 1))
    before = {p["metadata"]["uid"] for p in world.pods()}
    await passes(world, 6, settings)
    assert quarantined(world) == [] and {p["metadata"]["uid"] for p in world.pods()} == before
    (message,) = said(world, "NodeKept")
    assert why in message and SLOW.node in message
    assert world.job["status"]["keptNode"]["message"] == message
    world.tick(node_request.PAUSE_SECONDS)
    world.report_now = report("Running", 30)
    await passes(world, 2, settings)
    assert "keptNode" not in world.job["status"]


@pytest.mark.parametrize("action", ["None", "Warn", "Rebalance", "Migrate"])
async def test_a_job_that_does_not_allow_it_leaves_no_node(action: str) -> None:
    world = await asking(action)
    node(world, "spare")
    await passes(world, 6)
    assert quarantined(world) == [] and said(world, "NodeKept") == []


async def test_two_jobs_do_not_take_two_nodes_at_a_time() -> None:
    world = await asking()
    node(world, "spare")
    other = {"name": "elsewhere", "labels": {LABEL_JOB_UID: "another"}}
    world.put({"kind": "NodeQuarantine", "metadata": other, "spec": {"node": "elsewhere", "reason": "Slow"}})
    await passes(world, 3, replace(SETTINGS, quarantine_limit=9))
    assert quarantined(world) == ["elsewhere"] and "another node was quarantined" in said(world, "NodeKept")[0]


def quarantine_of(world: FakeCluster, node: str, job: str = "") -> None:
    """As the operator makes it for the job of this uid; by hand without one. The node's name is its name."""
    meta = {"name": node, "labels": {LABEL_JOB_UID: job} if job else {}}
    world.put({"kind": "NodeQuarantine", "metadata": meta, "spec": {"node": node, "reason": "Slow"}})


async def test_quarantines_by_hand_count_for_no_limit_and_no_pause() -> None:
    world = await asking()
    node(world, "spare")
    quarantine_of(world, "elsewhere")
    await passes(world, 3)
    assert quarantined(world) == ["elsewhere", SLOW.node]


async def test_a_quarantine_that_is_being_deleted_counts_for_no_limit_and_no_pause() -> None:
    world = await asking()
    node(world, "spare")
    quarantine_of(world, "elsewhere", "another-job")
    admit(world, "elsewhere", "example.com/audit")
    await passes(world, 3)
    assert quarantined(world) == ["elsewhere", SLOW.node]


@pytest.mark.parametrize("phase", ["Starting", "Suspending", "Completed"])
async def test_a_node_is_left_only_while_the_job_runs(phase: str) -> None:
    world = await asking()
    node(world, "spare")
    world.report_now = report(phase, 20, replace_node=SLOW)
    await passes(world, 1)
    assert quarantined(world) == [] and said(world, "NodeKept") == []


async def test_a_request_that_names_no_node_does_nothing() -> None:
    world = await asking()
    node(world, "spare")
    world.report_now = report("Running", 20, replace_node=NodeRequest("", "trainer-1", "slow"))
    await passes(world, 3)
    assert quarantined(world) == [] and said(world, "NodeKept") == []


async def test_a_node_that_stays_keeps_no_other_node_from_being_left() -> None:
    world = await asking()
    await passes(world, 2)
    assert SLOW.node in said(world, "NodeKept")[0]
    node(world, "spare")
    world.report_now = report("Running", 21, replace_node=NodeRequest("node-of-trainer-0", "trainer-0", "slow"))
    await passes(world, 2)
    assert quarantined(world) == ["node-of-trainer-0"]


@pytest.mark.parametrize(
    ("there", "cpu", "by_hand", "leaves"),
    [
        ("trainer-0", "3", False, False),
        ("trainer-0", "8", False, True),
        ("loader-0", "3", False, True),
        ("", "3", True, False),
    ],
    ids=["a trainer is there", "there is room beside it", "another role", "in quarantine"],
)
async def test_another_node_must_have_room_beside_the_trainers_there_and_no_quarantine(
    there: str, cpu: str, by_hand: bool, leaves: bool
) -> None:
    template = {"spec": {"containers": [{"name": "trainer", "resources": {"requests": {"cpu": "2"}}}]}}
    world = await asking(trainers={"count": 2, "template": template})
    node(world, "spare", cpu=cpu)
    if there:
        pod = world.pod(there)
        assert pod is not None
        pod["spec"]["nodeName"] = "spare"
    if by_hand:
        quarantine_of(world, "spare")
    await passes(world, 3)
    assert (SLOW.node in quarantined(world)) is leaves
    assert bool(said(world, "NodeKept")) is not leaves


async def test_only_the_trainer_on_the_node_moves_and_only_for_a_request_of_its_own_job() -> None:
    world = await asking()
    loader = world.pod("loader-0")
    assert loader is not None
    loader["spec"]["nodeName"] = SLOW.node
    quarantine_of(world, SLOW.node, "another")
    before = {p["metadata"]["uid"] for p in world.pods()}
    await passes(world, 4)
    assert {p["metadata"]["uid"] for p in world.pods()} == before  # another job asked for it
    del world.objects["NodeQuarantine", SLOW.node]
    world.tick(node_request.PAUSE_SECONDS)
    node(world, "spare")
    await passes(world, 6)
    assert loader["metadata"]["uid"] in {p["metadata"]["uid"] for p in world.pods() if live(p)}
    assert avoided(world, "trainer-1") == {SLOW.node}


async def test_a_trainer_whose_deletion_takes_long_is_moved_once() -> None:
    world = await asking()
    node(world, "spare")
    for _ in range(6):
        await Controller(world, world, world.clock, SETTINGS).pass_once(NAMESPACE, "demo")
        world.tick()
    assert len(said(world, "PodDisrupted")) == 1
    assert [member_of(pod) for pod in world.deleted] == ["trainer-1"]


async def left_for_another() -> FakeCluster:
    """Trainer 1 has left its node, and waits for one."""
    world = await asking()
    node(world, "spare")
    await passes(world, 4)
    world.unplaceable = {"trainer-1"}
    world.run_all()
    return world


def waits(world: FakeCluster, member: str, reason: str = "Unschedulable") -> Manifest:
    pod = world.pod(member)
    assert pod is not None
    world.unschedulable(pod, reason)
    return pod


@pytest.mark.parametrize("how", ["it runs", "a queue holds it", "it does not avoid the node"])
async def test_a_node_is_used_again_only_for_a_trainer_that_waits_for_it(how: str) -> None:
    world = await left_for_another()
    pod = waits(world, "trainer-1", "SchedulingGated" if how == "a queue holds it" else "Unschedulable")
    if how != "a queue holds it":
        world.run(pod)
        pod["spec"]["nodeName"] = "spare"
    if how == "it does not avoid the node":
        waits(world, "trainer-0")
    world.tick(node_request.PATIENCE_SECONDS + 1)
    await Controller(world, world, world.clock, SETTINGS).pass_once(NAMESPACE, "demo")
    assert quarantined(world) == [SLOW.node] and said(world, "NodeKept") == []


async def test_the_quarantine_of_another_job_is_not_ended_for_a_trainer_that_waits() -> None:
    world = new_world()
    quarantine_of(world, "elsewhere", "another")
    world.unplaceable = {"trainer-1"}
    await passes(world)
    world.run_all()
    world.tick(node_request.PATIENCE_SECONDS + 1)
    await passes(world)
    assert quarantined(world) == ["elsewhere"]


async def test_a_pass_is_due_when_a_trainer_has_waited_long_enough_for_another_node() -> None:
    world = await left_for_another()
    pod = world.pod("trainer-1")
    assert pod is not None
    decision = await Controller(world, world, world.clock, SETTINGS).pass_once(NAMESPACE, "demo")
    due = seconds(pod["metadata"]["creationTimestamp"]) + node_request.PATIENCE_SECONDS
    assert due in {getattr(action, "time", 0.0) for action in (decision.actions if decision else ())}


async def test_a_node_is_used_again_when_its_trainer_finds_no_other() -> None:
    world = await left_for_another()
    await passes(world, 3)
    assert quarantined(world) == [SLOW.node]
    world.tick(node_request.PATIENCE_SECONDS)
    await passes(world, 4)
    assert quarantined(world) == [] and "used again" in said(world, "NodeKept")[0]
    assert avoided(world, "trainer-1") == set()
    world.unplaceable = set()
    world.run_all()
    await passes(world, 8)
    assert quarantined(world) == []  # it does not ask again at once


async def test_a_node_is_quarantined_a_second_time_once_the_first_time_is_over() -> None:
    world = await asking()
    node(world, "spare")
    await passes(world, 4)
    first = world.objects["NodeQuarantine", SLOW.node]["metadata"]["uid"]
    world.report_now = report("Running", 30)
    world.run_all()
    world.tick(node_request.QUARANTINE_SECONDS)
    put(world, "by-hand", until=stamp(world.now - 1))
    await passes(world, 3)
    assert quarantined(world) == ["by-hand"]  # only the operator's own is deleted
    pod = world.pod("trainer-1")
    assert pod is not None
    pod["spec"]["nodeName"] = SLOW.node
    world.report_now = report("Running", 40, replace_node=SLOW)
    await passes(world, 6)
    again = world.objects["NodeQuarantine", SLOW.node]
    assert again["metadata"]["uid"] != first and again["spec"]["until"] > stamp(world.now)
    assert len(said(world, "NodeQuarantined")) == 2


async def test_an_ended_quarantine_of_another_job_makes_room_and_one_of_a_person_is_named() -> None:
    for owner, found in (({LABEL_JOB_UID: "gone"}, []), ({}, [SLOW.node])):
        world = await asking()
        node(world, "spare")
        over = {"node": SLOW.node, "reason": "Slow", "until": stamp(world.now - 1)}
        world.put({"kind": "NodeQuarantine", "metadata": {"name": SLOW.node, "labels": owner}, "spec": over})
        await passes(world, 6)
        assert [n for n in quarantined(world) if world.objects["NodeQuarantine", n]["spec"] == over] == found
        kept = said(world, "NodeKept")
        assert len(said(world, "NodeQuarantined")) == (0 if found else 1)
        assert ("delete NodeQuarantine node-of-trainer-1" in kept[0]) if found else kept == []
