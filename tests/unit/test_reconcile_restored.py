"""A job that a backup has brought back: its uid is new, its status is gone, and its children may be there, owned by no job."""

from __future__ import annotations

from typing import Any

from coxswain.names import LABEL_JOB, LABEL_JOB_UID
from coxswain_operator.children import KINDS
from coxswain_operator.views import Manifest
from tests.unit.fake_cluster import FakeCluster, copied, data_mix, data_source, report, report_text
from tests.unit.test_reconcile_lifecycle import passes, running

CHILDREN = ("Pod", "Secret", *KINDS)


async def restored(owners: bool) -> tuple[FakeCluster, set[tuple[str, str]]]:
    """Another cluster after the restore of all that a running job had, children first as Velero does, and what they are.

    `owners`: their ownerReferences are kept, which Velero drops.
    """
    before = await running()
    world = FakeCluster(data_source(), data_mix())
    world.now = before.now + 3600
    for (kind, _), item in before.objects.items():
        if kind in CHILDREN:
            world.put(_fresh(item, owners))
    children = {key for key in world.objects if key[0] in CHILDREN}
    world.put({k: v for k, v in _fresh(before.job, owners=False).items() if k != "status"})
    world.job["metadata"]["uid"] = "restored"
    return world, children


def _fresh(item: Manifest, owners: bool) -> Manifest:
    """Without what a server sets; a pod starts from the beginning."""
    fresh: dict[str, Any] = copied(item)
    for field in (
        "uid",
        "generation",
        "creationTimestamp",
        "resourceVersion",
        *(() if owners else ("ownerReferences",)),
    ):
        fresh["metadata"].pop(field, None)
    return {**fresh, "status": {"phase": "Pending"}} if fresh["kind"] == "Pod" else fresh


def owners(world: FakeCluster) -> set[str]:
    found = (o["metadata"].get("ownerReferences") or [{}] for (kind, _), o in world.objects.items() if kind in CHILDREN)
    return {refs[0].get("uid", "") for refs in found}


def message(world: FakeCluster) -> str:
    text: str = world.condition("Progressing")["message"]
    return text


async def test_children_that_a_backup_restored_without_an_owner_are_neither_taken_nor_removed() -> None:
    """Their pods may train: the job waits, and names what deletes them all. Then it begins, and nothing of theirs is used."""
    world, children = await restored(owners=False)
    world.run_all()
    world.report_now = report("Running", 11)
    former = world.pods()[0]["metadata"]["labels"][LABEL_JOB_UID]
    uids = {key: world.objects[key]["metadata"]["uid"] for key in children}
    await passes(world, 8)
    assert {key: world.objects[key]["metadata"]["uid"] for key in children} == uids
    assert (world.deleted, world.created) == ([], [])
    words = "pod,service,configmap,secret,networkpolicy,poddisruptionbudget"
    assert set(words.split(",")) == {kind.lower() for kind in CHILDREN}
    assert (
        "NameTaken: Service demo has no owner and the labels of an earlier TrainingJob demo, as after the restore of a backup; "
        f"delete all that is left of that job (kubectl delete {words} -l {LABEL_JOB_UID}={former}), or give the job another "
        "name (and 1 more)"
    ) in message(world)
    for key in children:
        del world.objects[key]
    await passes(world, 20)
    assert len(world.created) == 4 and owners(world) == {"restored"}


async def test_an_object_without_an_owner_and_with_other_labels_is_none_of_an_earlier_job() -> None:
    world, children = await restored(owners=False)
    for key in children:
        world.objects[key]["metadata"]["labels"][LABEL_JOB] = "other"
    await passes(world, 8)
    assert "Service demo belongs to no TrainingJob; delete it, or give the job another name" in message(world)


async def test_children_that_name_a_dead_owner_are_replaced_by_the_jobs_own() -> None:
    """But for those whose names are free: the cluster's garbage collector removes them."""
    world, children = await restored(owners=True)
    former = {
        world.objects[key]["metadata"]["uid"] for key in children if key[0] in ("Pod", "Service", "NetworkPolicy")
    }
    await passes(world, 12)
    assert len(world.created) == 4
    assert former.isdisjoint(o["metadata"]["uid"] for o in world.objects.values())
    tokens = [name for kind, name in world.objects if kind == "Secret" and ("Secret", name) not in children]
    assert tokens == [world.job["status"]["tokenSecret"]]


async def test_a_job_without_a_status_begins_as_a_new_one_and_its_coordinator_decides_where() -> None:
    """Whether the run at checkpoint.uri goes on is in tests/unit/test_coordinator_checkpoints.py."""
    world, children = await restored(owners=False)
    for key in children:
        del world.objects[key]
    await passes(world, 6)
    assert (len(world.created), world.job["status"]["attempt"]) == (4, 0)
    assert "lastCheckpoint" not in world.job["status"]


async def test_a_finished_job_that_is_restored_with_its_status_stays_finished_and_without_it_starts_again() -> None:
    before = await running()
    coordinator = before.pod("coordinator")
    assert coordinator is not None
    before.end(coordinator, 0, report_text("Completed", step=100))
    await passes(before, 6)
    assert before.state == "Completed"
    for status, created in ((before.job["status"], 0), (None, 4)):
        world = FakeCluster(data_source(), data_mix(), {**_fresh(before.job, owners=False), "status": status or {}})
        world.job["metadata"]["uid"] = "restored"
        await passes(world, 6)
        assert len(world.created) == created
