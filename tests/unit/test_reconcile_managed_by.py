"""Which jobs and pods a controller leaves to others: several may share a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coxswain.names import CONTROLLER
from coxswain_operator.controller import Controller
from coxswain_operator.pod_decoding import pod_view
from coxswain_operator.settings import Settings
from coxswain_operator.views import PodView
from tests.unit.fake_cluster import NAMESPACE, copied, with_job
from tests.unit.test_reconcile_controller import foreign_pod


@pytest.mark.parametrize(
    ("mine", "said", "acts"),
    [
        ("", "example.org/other", True),
        (CONTROLLER, None, True),
        (CONTROLLER, CONTROLLER, True),
        (CONTROLLER, "example.org/other", False),
        ("example.org/other", "example.org/other", True),
        ("example.org/other", None, False),
    ],
)
async def test_a_job_belongs_to_the_controller_that_it_names(mine: str, said: str | None, acts: bool) -> None:
    world = with_job(**({"managedBy": said} if said else {}))
    controller = Controller(world, world, world.clock, settings=Settings(managed_by=mine))
    for _ in range(4):
        await controller.reconcile_job(NAMESPACE, "demo")
    assert (len(world.created), "status" in world.job) == ((4, True) if acts else (0, False))


@pytest.mark.parametrize(("exists", "left"), [(True, []), (False, ["demo-a"])])
async def test_pods_that_a_queue_keeps_leave_it_once_no_job_of_their_name_exists_under_any_controller(
    exists: bool, left: list[str]
) -> None:
    world = with_job(managedBy="example.org/a")
    if not exists:
        del world.objects["TrainingJob", "demo"]

    async def orphans(namespace: str, job: str, besides: str = "") -> list[PodView]:
        ended = {"phase": "Failed", "lingers": False}
        return [replace(pod_view(foreign_pod("demo-trainer-0-0")), group="demo-a", **ended)]

    async def leave_queue(namespace: str, group: str, pod: str, uid: str = "") -> None:
        found.append(group)

    found: list[str] = []
    world.orphans, world.leave_queue = orphans, leave_queue  # type: ignore[method-assign]
    await Controller(world, world, world.clock, settings=Settings(managed_by=CONTROLLER)).reconcile_job(
        NAMESPACE, "demo"
    )
    assert found == left


async def test_two_installations_leave_each_others_jobs_and_their_pods_alone() -> None:
    """Neither its policy nor its group in a queue, which a deleted job would leave."""
    queueing = {"queueing": {"backend": "Kueue", "queueName": "research"}}
    world = with_job(managedBy="example.org/a", scheduling=queueing)
    a, b = (
        Controller(
            world, world, world.clock, settings=Settings(managed_by=f"example.org/{name}", operator_namespace=name)
        )
        for name in "ab"
    )
    for _ in range(4):
        await a.reconcile_job(NAMESPACE, "demo")
    before, calls = copied(world.job), len(world.created)
    world.before_call = lambda verb, what: writes.append((verb, what)) if verb not in ("get", "list") else None
    writes: list[tuple[str, str]] = []
    for _ in range(4):
        await b.reconcile_job(NAMESPACE, "demo")
    assert (writes, world.job, len(world.created)) == ([], before, calls)
    policy = world.objects["NetworkPolicy", "demo"]["spec"]
    assert "'kubernetes.io/metadata.name': 'a'" in str(policy)
