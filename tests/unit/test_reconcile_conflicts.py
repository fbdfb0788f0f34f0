"""Writes that the server answers with 409 although nothing holds the name: once it is chance, again and again a fault."""

from __future__ import annotations

from typing import Any, cast

import pytest

from coxswain_operator.cluster import Conflict
from coxswain_operator.controller import Controller
from coxswain_operator.kubernetes.cluster import KubernetesCluster
from coxswain_operator.kubernetes.connection import Connection
from tests.unit.fake_cluster import NAMESPACE, FakeCluster, with_job
from tests.unit.test_reconcile_lifecycle import running
from tests.unit.test_reconcile_refusals import message, passes, refusing

HOOK = Conflict('admission webhook "policy.example" denied the request: frozen')


async def delays(world: FakeCluster, count: int) -> list[float]:
    controller, found = Controller(world, world, world.clock), []
    for _ in range(count):
        delay = await controller.reconcile_job(NAMESPACE, "demo")
        assert delay is not None
        found.append(delay.most)
        world.tick(10)
    return found


async def test_a_create_that_meets_a_conflict_again_and_again_is_named_and_tried_every_ten_seconds() -> None:
    world = with_job()
    lift = refusing(world, HOOK)
    assert await delays(world, 5) == [1.0, 1.0, 10.0, 10.0, 10.0]
    assert "Conflict: Pod demo-trainer-0-0: the API server answers with a conflict each time" in message(world)
    assert HOOK.args[0] in message(world) and world.state != "Failed"
    lift()
    await passes(world)
    assert "demo-trainer-0-0" in world.created and "Conflict" not in message(world)


async def test_conflicts_by_chance_hold_up_no_start_and_are_not_named() -> None:
    """Pods that are created together meet in the status of their quota."""
    world, met = with_job(trainers={"count": 8}), set[str]()

    def meet(verb: str, what: str) -> None:
        if verb == "create" and what.startswith("demo-trainer") and what not in met:
            met.add(what)
            raise Conflict("resourcequotas gpus: the object has been modified")

    world.before_call = meet
    assert await delays(world, 2) == [1.0, 0.0]
    assert sum(name.startswith("demo-trainer") for name in world.created) == 8
    assert "Conflict" not in message(world)


@pytest.mark.parametrize("verb", ["delete", "create"])
async def test_a_conflict_with_one_pod_keeps_no_other_member_from_being_replaced(verb: str) -> None:
    world = await running()
    for member in ("trainer-0", "trainer-1"):
        world.end(world.pod(member), 1)
    refusing(world, HOOK, verb, f"demo-trainer-0-{int(verb == 'create')}")
    await passes(world)
    assert "demo-trainer-1-1" in world.created
    assert f"Conflict: Pod demo-trainer-0-{int(verb == 'create')}: " in message(world)


class Conflicting:
    """A connection whose server answers each deletion with 409, and has these uids under the name."""

    def __init__(self, *uids: str) -> None:
        self._uids = uids

    async def send(self, *_: Any, **__: Any) -> bytes:
        raise Conflict(*HOOK.args)

    async def call(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        return {"items": [{"metadata": {"name": "p", "uid": uid}} for uid in self._uids]}


@pytest.mark.parametrize("uids", [(), ("b",)], ids=["gone", "another"])
async def test_a_pod_that_is_gone_is_deleted_where_the_server_answers_with_a_conflict(uids: tuple[str, ...]) -> None:
    """Another one has its name."""
    await KubernetesCluster(cast("Connection", Conflicting(*uids))).delete("Pod", NAMESPACE, "p", "a")


async def test_a_pod_that_is_there_is_not_deleted_where_the_server_answers_with_a_conflict() -> None:
    """Else a webhook's 409 would be a deletion that succeeds, and is asked for again at once, without end."""
    with pytest.raises(Conflict, match="frozen"):
        await KubernetesCluster(cast("Connection", Conflicting("a"))).delete("Pod", NAMESPACE, "p", "a")
