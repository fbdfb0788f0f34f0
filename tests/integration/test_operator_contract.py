"""The Cluster seam's contract: every claim holds of this machine's cluster and of a real API server's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coxswain.errors import Refused
from coxswain.names import LABEL_JOB_UID
from coxswain_operator.cluster import AlreadyExists, Cluster, Conflict, WatchEvent
from coxswain_operator.local import LocalCluster
from coxswain_operator.views import Event, Manifest
from tests.integration.operator_parts import a_job, config_map, connected, new_namespace


@pytest.fixture(params=["local", "kubernetes"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Any, str]]:
    """A cluster, and an unused namespace of it."""
    if request.param == "local":
        async with LocalCluster(tmp_path) as local:
            yield local, "default"
    else:
        api = request.getfixturevalue("api")
        async with connected(api) as cluster:
            yield cluster, new_namespace(api)


Place = tuple[Cluster, str]


async def names(cluster: Cluster, kind: str, namespace: str, labels: dict[str, str] | None = None) -> list[str]:
    return sorted(m["metadata"]["name"] for m in await cluster.list(kind, namespace, labels))


async def test_it_is_a_cluster(place: Place) -> None:
    assert isinstance(place[0], Cluster)


async def test_create_gives_uid_and_version_and_a_second_object_of_that_name_already_exists(place: Place) -> None:
    cluster, namespace = place
    stored = await cluster.create(a_job(namespace))
    assert {"uid", "resourceVersion", "creationTimestamp", "generation"} <= stored["metadata"].keys()
    with pytest.raises(AlreadyExists):
        await cluster.create(a_job(namespace))


async def test_an_object_is_found_by_its_name_whatever_its_labels(place: Place) -> None:
    cluster, namespace = place
    unlabelled = config_map(namespace)
    del unlabelled["metadata"]["labels"]
    stored = await cluster.create(unlabelled)
    found = await cluster.find("ConfigMap", namespace, "c")
    assert found is not None
    assert (found["kind"], found["metadata"]["uid"]) == ("ConfigMap", stored["metadata"]["uid"])
    assert await cluster.find("ConfigMap", namespace, "d") is None


async def test_a_name_that_no_cluster_takes_is_refused(place: Place) -> None:
    cluster, namespace = place
    with pytest.raises(Refused, match=r"lower.?case"):
        await cluster.create(config_map(namespace, "../../etc"))


async def test_a_list_always_has_what_was_just_created(place: Place) -> None:
    cluster, namespace = place
    for count in range(1, 21):
        await cluster.create(config_map(namespace, f"c{count}"))
        assert len(await cluster.list("ConfigMap", namespace, {LABEL_JOB_UID: "j"})) == count


async def test_a_list_never_has_what_was_just_deleted(place: Place) -> None:
    cluster, namespace = place
    for _ in range(10):
        stored = await cluster.create(config_map(namespace))
        await cluster.delete("ConfigMap", namespace, "c", stored["metadata"]["uid"])
        left = await cluster.list("ConfigMap", namespace, {LABEL_JOB_UID: "j"})
        assert [m for m in left if "deletionTimestamp" not in m["metadata"]] == []
        await gone(cluster, "ConfigMap", namespace)


async def test_another_object_of_the_same_name_is_not_deleted(place: Place) -> None:
    cluster, namespace = place
    await cluster.create(config_map(namespace))
    await cluster.delete("ConfigMap", namespace, "c", "11111111-2222-3333-4444-555555555555")
    assert await names(cluster, "ConfigMap", namespace, {LABEL_JOB_UID: "j"}) == ["c"]


async def test_to_delete_what_does_not_exist_is_no_error(place: Place) -> None:
    cluster, namespace = place
    await cluster.delete("ConfigMap", namespace, "never")
    assert await names(cluster, "ConfigMap", namespace) == []


async def test_a_status_write_on_an_older_version_is_a_conflict(place: Place) -> None:
    cluster, namespace = place
    version = (await cluster.create(a_job(namespace)))["metadata"]["resourceVersion"]
    written = await cluster.patch_status("TrainingJob", namespace, "demo", {"attempt": 1}, version)
    assert written["status"] == {"attempt": 1}
    with pytest.raises(Conflict):
        await cluster.patch_status("TrainingJob", namespace, "demo", {"attempt": 2}, version)


async def test_a_status_write_to_an_object_that_is_gone_is_a_conflict(place: Place) -> None:
    cluster, namespace = place
    with pytest.raises(Conflict):
        await cluster.patch_status("TrainingJob", namespace, "demo", {"attempt": 1}, "")


async def test_a_status_write_replaces_the_whole_status_and_leaves_the_generation(place: Place) -> None:
    cluster, namespace = place
    stored = await cluster.create(a_job(namespace))
    await cluster.patch_status("TrainingJob", namespace, "demo", {"attempt": 1, "ready": "0/2"}, "")
    written = await cluster.patch_status("TrainingJob", namespace, "demo", {"attempt": 2}, "")
    assert (await cluster.list("TrainingJob", namespace))[0]["status"] == written["status"] == {"attempt": 2}
    assert written["metadata"]["generation"] == stored["metadata"]["generation"]


async def test_labels_select(place: Place) -> None:
    cluster, namespace = place
    for job in ("a", "b"):
        await cluster.create(config_map(namespace, f"c-{job}", job))
    assert await names(cluster, "ConfigMap", namespace, {LABEL_JOB_UID: "b"}) == ["c-b"]


async def test_items_of_a_list_carry_their_kind(place: Place) -> None:
    cluster, namespace = place
    await cluster.create(config_map(namespace))
    (listed,) = await cluster.list("ConfigMap", namespace)
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "ConfigMap")


async def test_what_is_handed_out_is_a_copy(place: Place) -> None:
    cluster, namespace = place
    (await cluster.create(config_map(namespace)))["data"]["a"] = "mine"
    (await cluster.list("ConfigMap", namespace))[0]["data"]["a"] = "mine"
    assert (await cluster.list("ConfigMap", namespace))[0]["data"] == {"a": "b"}


async def test_a_watch_shows_what_is_there_and_then_every_change(place: Place) -> None:
    cluster, namespace = place
    await cluster.create(a_job(namespace, "a"))
    changes = cluster.watch("TrainingJob", namespace)
    seen = [await following(changes)]
    await cluster.create(a_job(namespace, "b"))
    await cluster.patch_status("TrainingJob", namespace, "a", {"attempt": 1}, "")
    seen += [await following(changes), await following(changes)]
    await cluster.delete("TrainingJob", namespace, "b")
    while seen[-1][0] != "DELETED":
        seen.append(await following(changes))
    assert seen[:3] == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a")]
    assert seen[-1] == ("DELETED", "b")


async def test_a_published_event_can_be_read_with_its_reason_and_message(
    place: Place, request: pytest.FixtureRequest
) -> None:
    """A long one as far as the API takes it, which counts bytes."""
    cluster, namespace = place
    created, long = await cluster.create(a_job(namespace)), "ü" * 1000
    await cluster.publish(created, Event("Completed", "done", warning=True))
    await cluster.publish(created, Event("Failed", long))
    async with asyncio.timeout(60):
        while len(found := published(cluster, namespace, request)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    shown = long if isinstance(cluster, LocalCluster) else long[:512]
    assert sorted(found) == [("Completed", "done", "demo", True), ("Failed", shown, "demo", False)]


def published(cluster: Cluster, namespace: str, request: pytest.FixtureRequest) -> list[tuple[str, str, str, bool]]:
    """Reason, message, name of the object, and whether it is a warning."""
    if isinstance(cluster, LocalCluster):
        lines = [json.loads(line) for line in (cluster.workdir / "events.jsonl").read_text().splitlines()]
        return [(e["reason"], e["message"], e["object"].rpartition("/")[2], e["warning"]) for e in lines]
    answer = request.getfixturevalue("api").http.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    return [(e["reason"], e["note"], e["regarding"]["name"], e["type"] == "Warning") for e in answer.json()["items"]]


async def following(changes: AsyncIterator[WatchEvent]) -> tuple[str, str]:
    change = await asyncio.wait_for(anext(changes), 60)
    return change.kind, change.object["metadata"]["name"]


async def gone(cluster: Cluster, kind: str, namespace: str) -> None:
    """Until nothing is left."""
    left: list[Manifest] = await cluster.list(kind, namespace)
    async with asyncio.timeout(60):
        while left:
            await asyncio.sleep(0.01)
            left = await cluster.list(kind, namespace)
