"""A server that refuses what the operator asks of NodeQuarantines: jobs go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coxswain.errors import Retryable
from coxswain_operator.cluster import Conflict, Denied
from coxswain_operator.controller import Controller
from coxswain_operator.reconcile import node_request
from coxswain_operator.reconcile.times import seconds
from coxswain_operator.views import Manifest
from tests.unit.fake_cluster import NAMESPACE, FakeCluster
from tests.unit.test_reconcile_quarantine import (
    SETTINGS,
    SLOW,
    asking,
    left_for_another,
    node,
    passes,
    quarantined,
    said,
)

FORBIDDEN = 'nodequarantines is forbidden: User "c" cannot %s resource "nodequarantines" in API group "coxswain.dev"'


def refusing(world: FakeCluster, verb: str, error: Exception) -> Callable[[], None]:
    """Refuses to create, or delete, the quarantine until the answer is called."""

    def refuse(called: str, what: str) -> None:
        if (called, what) == (verb, SLOW.node):
            raise error

    def lift() -> None:
        world.before_call = lambda verb, what: None

    world.before_call = refuse
    return lift


async def of_one_operator(world: FakeCluster, count: int) -> None:
    """Which remembers what it was refused."""
    controller = Controller(world, world, world.clock, SETTINGS)
    for _ in range(count):
        await controller.pass_once(NAMESPACE, "demo")
        world.tick()
        world.reap()


async def test_without_the_right_to_list_quarantines_jobs_go_on_and_no_node_is_quarantined() -> None:
    world = await asking()
    node(world, "spare")
    find = world.list

    async def forbidding(kind: str, namespace: str, labels: dict[str, str] | None = None) -> list[Manifest]:
        if kind == "NodeQuarantine":
            raise Denied("Forbidden", "nodequarantines is forbidden")
        return await find(kind, namespace, labels)

    world.list = forbidding  # type: ignore[method-assign]
    world.vanish(world.pod("loader-0") or {})
    await passes(world)
    assert world.pod("loader-0") is not None  # replaced
    assert quarantined(world) == said(world, "NodeQuarantined") == []


async def test_a_quarantine_that_may_not_be_deleted_is_written_about_once_an_hour() -> None:
    world = await left_for_another()
    end = world.delete

    async def refusing(kind: str, namespace: str, name: str, uid: str = "", force: bool = False) -> None:
        if kind == "NodeQuarantine":
            raise Denied("Forbidden", "nodequarantines is forbidden")
        await end(kind, namespace, name, uid, force)

    world.delete = refusing  # type: ignore[method-assign]
    world.tick(node_request.PATIENCE_SECONDS)
    await passes(world, 4)
    written = world.status_writes
    await passes(world, 20)
    assert world.status_writes == written
    assert len(said(world, "NodeKept")) == 1
    until = seconds(world.job["status"]["keptNode"]["until"])
    for left, times in ((1, 1), (0, 2)):
        world.tick(until - left - world.now)
        await passes(world, 1)
        assert len(said(world, "NodeKept")) == times
    await passes(world, 4)
    assert len(said(world, "NodeKept")) == 2


async def test_a_server_that_refuses_a_quarantine_does_not_stop_the_job() -> None:
    world = await asking()
    node(world, "spare")
    create = world.create

    async def refusing(manifest: Manifest) -> Manifest:
        if manifest["kind"] == "NodeQuarantine":
            raise Denied("Forbidden", "nodequarantines is forbidden")
        return await create(manifest)

    world.create = refusing  # type: ignore[method-assign]
    await passes(world)
    assert world.state == "Running" and quarantined(world) == said(world, "NodeQuarantined") == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Denied("Forbidden", FORBIDDEN % "create"), "cannot create resource"),
        (Denied("AdmissionDenied", 'admission webhook "nodes.example" denied the request'), "nodes.example"),
        (Retryable("POST did not succeed within 10 s: failed calling webhook"), "failed calling webhook"),
        (Conflict("frozen"), "frozen"),
    ],
)
async def test_a_quarantine_that_the_server_refuses_is_named_in_status_and_event_and_asked_for_again_later(
    error: Exception, words: str
) -> None:
    world = await asking()
    node(world, "spare")
    lift = refusing(world, "create", error)
    await of_one_operator(world, 20)
    (text,) = said(world, "NodeKept")
    assert text.startswith(f"{SLOW.node} stays, though {SLOW.evidence}: NodeQuarantine {SLOW.node}") and words in text
    assert world.job["status"]["keptNode"]["message"] == text
    lift()
    world.tick(node_request.PAUSE_SECONDS)
    await of_one_operator(world, 4)
    assert quarantined(world) == [SLOW.node] and world.state == "Running"


async def test_a_node_that_the_server_keeps_in_quarantine_is_not_said_to_be_used_again_for_long() -> None:
    world = await left_for_another()
    refusing(world, "delete", Denied("Forbidden", FORBIDDEN % "delete"))
    world.tick(node_request.PATIENCE_SECONDS)
    await of_one_operator(world, 20)
    text = said(world, "NodeKept")[-1]
    assert text.startswith(f"{SLOW.node} stays in quarantine, and a trainer waits: NodeQuarantine {SLOW.node}")
    assert text.endswith(f"; delete NodeQuarantine {SLOW.node} yourself") and "cannot delete resource" in text
    assert world.job["status"]["keptNode"]["message"] == text
    assert len(said(world, "NodeKept")) == 2
