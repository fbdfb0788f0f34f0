"""Nodes in quarantine whose names other nodes get, as of node pools, spot replacements and repairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coxswain.names import API_VERSION, LABEL_JOB_UID
from coxswain_operator.cluster import Denied
from coxswain_operator.controller import Controller
from coxswain_operator.views import Manifest
from tests.unit.fake_cluster import NAMESPACE, FakeCluster
from tests.unit.test_reconcile_quarantine import (
    SETTINGS,
    SLOW,
    asking,
    avoided,
    new_world,
    node,
    passes,
    quarantined,
    said,
)


def uid_of(world: FakeCluster, name: str) -> str:
    return str(world.objects["Node", name]["metadata"]["uid"])


def put(world: FakeCluster, name: str, uid: str, job: str = "") -> None:
    """A quarantine of the node with this uid (empty: of whatever node has the name), by the operator for a job, or by hand."""
    meta: Manifest = {"name": name, "labels": {LABEL_JOB_UID: job} if job else {}}
    spec: dict[str, Any] = {"node": name, "reason": "Slow"} | ({"nodeUid": uid} if uid else {})
    world.put({"apiVersion": API_VERSION, "kind": "NodeQuarantine", "metadata": meta, "spec": spec})


async def test_the_operators_quarantine_names_the_node_by_its_uid_too() -> None:
    world = await asking()
    node(world, "spare")
    await passes(world, 3)
    assert world.objects["NodeQuarantine", SLOW.node]["spec"]["nodeUid"] == uid_of(world, SLOW.node)
    await passes(world, 3)
    assert quarantined(world) == [SLOW.node] and said(world, "NodeReadmitted") == []


async def test_another_node_that_gets_the_name_of_one_in_quarantine_is_admitted_and_an_event_says_so_once() -> None:
    world = await asking()
    node(world, "spare")
    await passes(world, 6)
    former = uid_of(world, SLOW.node)
    node(world, SLOW.node)
    await passes(world, 3)
    assert quarantined(world) == []
    (message,) = said(world, "NodeReadmitted")
    assert f"{SLOW.node}: another node has that name now" in message and former in message
    assert uid_of(world, SLOW.node) in message and f"NodeQuarantine {SLOW.node}" in message


async def test_a_pod_that_waits_for_room_may_use_the_new_node() -> None:
    world = new_world()
    node(world, "bad")
    put(world, "bad", uid_of(world, "bad"), job="another")
    world.unplaceable = {"trainer-1"}
    await passes(world)
    world.run_all()
    await passes(world)
    assert avoided(world, "trainer-1") == {"bad"}
    node(world, "bad")
    await passes(world, 4)
    assert world.created[4:] == ["demo-trainer-1-1"] and avoided(world, "trainer-1") == set()


async def test_a_trainer_on_a_new_node_of_the_name_is_not_moved_off_it() -> None:
    """Where the server keeps the operator from deleting the quarantine of the former node."""
    world = await asking()
    put(world, SLOW.node, "former", job=world.job["metadata"]["uid"])

    def judge(verb: str, what: str) -> None:
        if (verb, what) == ("delete", SLOW.node):
            raise Denied("Forbidden", "no")

    world.before_call, world.report_now = judge, None
    before = {p["metadata"]["uid"] for p in world.pods()}
    await passes(world, 4)
    assert {p["metadata"]["uid"] for p in world.pods()} == before
    assert quarantined(world) == [SLOW.node] and said(world, "NodeReadmitted") == []


@pytest.mark.parametrize("known", ["the node is gone", "the operator may not see nodes", "the quarantine names no uid"])
async def test_a_quarantine_holds_as_long_as_no_other_node_is_known_to_have_the_name(known: str) -> None:
    world = new_world()
    if known != "the operator may not see nodes":
        node(world, "bad" if known == "the quarantine names no uid" else "spare")
    put(world, "bad", "" if known == "the quarantine names no uid" else "former", job="another")
    await passes(world)
    assert avoided(world, "trainer-0") == {"bad"} and quarantined(world) == ["bad"]


async def test_a_quarantine_without_a_uid_holds_whatever_node_has_its_name_also_beside_one_with_a_uid() -> None:
    """That one makes the operator look at the nodes."""
    world = new_world()
    node(world, "bad")
    put(world, "bad", "", job="another")
    put(world, "gone", "former", job="another")
    await passes(world)
    assert avoided(world, "trainer-0") == {"bad", "gone"} and sorted(quarantined(world)) == ["bad", "gone"]


async def test_a_persons_quarantine_of_a_node_that_was_replaced_keeps_no_pod_off_and_stays() -> None:
    """The operator deletes no object of a person's."""
    world = new_world()
    node(world, "bad")
    put(world, "bad", "former")
    await passes(world)
    assert avoided(world, "trainer-0") == set() and quarantined(world) == ["bad"]


async def test_a_quarantine_of_a_node_that_was_replaced_counts_for_no_limit_and_no_pause() -> None:
    world = await asking()
    node(world, "spare")
    node(world, "elsewhere", cpu="0")
    put(world, "elsewhere", "former", job="another")
    await Controller(world, world, world.clock, replace(SETTINGS, quarantine_limit=1)).pass_once(NAMESPACE, "demo")
    assert quarantined(world) == [SLOW.node]
