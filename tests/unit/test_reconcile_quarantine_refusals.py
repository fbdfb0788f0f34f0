"""A server that refuses what the operator asks of NodeQuarantines: jobs go on."""

from __future__ import annotations

from coxswain_operator.cluster import Denied
from coxswain_operator.reconcile import node_request
from coxswain_operator.reconcile.times import seconds
from coxswain_operator.views import Manifest
from tests.unit.test_reconcile_quarantine import asking, left_for_another, node, passes, quarantined, said


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
