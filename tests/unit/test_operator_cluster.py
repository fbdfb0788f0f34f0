"""`KubernetesCluster` over a scripted connection: what it sends, and what a read finds after its own writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coxswain.errors import Refused
from coxswain.names import API_VERSION, LABEL_INCARNATION, LABEL_INDEX, LABEL_JOB, LABEL_JOB_UID, LABEL_ROLE
from coxswain_operator.children.scheduling import RETRIABLE
from coxswain_operator.cluster import Conflict, Denied, WatchEvent
from coxswain_operator.kubernetes import KubernetesCluster
from coxswain_operator.kubernetes.connection import APPLY, MERGE, NotFound
from coxswain_operator.views import Manifest

pytestmark = pytest.mark.looptime(start=1000)
POD = "/api/v1/namespaces/lab/pods/p"
STATUS = f"/apis/{API_VERSION}/namespaces/lab/trainingjobs/demo/status"


def pod(name: str = "p", version: int = 5, namespace: str = "lab", **labels: str) -> Manifest:
    owner = {"apiVersion": API_VERSION, "kind": "TrainingJob", "name": "demo", "uid": "j", "controller": True}
    head = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": str(version)}
    ours = {LABEL_JOB: "demo", LABEL_JOB_UID: "j", LABEL_ROLE: "trainer", LABEL_INDEX: "0", LABEL_INCARNATION: "0"}
    return {"kind": "Pod", "metadata": {**head, "labels": ours | labels, "ownerReferences": [owner]}}


def job(version: int, **status: Any) -> Manifest:
    head = {"name": "demo", "namespace": "lab", "uid": "j", "resourceVersion": str(version)}
    return {"apiVersion": API_VERSION, "kind": "TrainingJob", "metadata": head, "status": status}


class Server:
    """Lists `items` by the plural name of their kind at version 7, and answers writes one after the other."""

    def __init__(self, *answers: Manifest | Exception, **items: list[Manifest] | Exception) -> None:
        self.answers, self.items = [*answers], items
        self.sent: list[tuple[str, str, Any, str]] = []
        self.watched: list[tuple[str, float]] = []  # and the silence that each watch bears
        self.served: list[list[str]] = []  # kinds by their plural names, at one look after the other

    async def send(self, method: str, path: str, body: Any = None, content_type: str = "", **_: Any) -> bytes:
        if method == "GET":
            found = self.items.get(path.rpartition("/")[2], [])
            if isinstance(found, Exception):
                raise found
            return json.dumps({"metadata": {"resourceVersion": "7"}, "items": found}).encode()
        self.sent.append((method, path, body, content_type))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode()

    async def call(self, method: str, path: str) -> Manifest:
        assert (method, path) == ("GET", f"/apis/{API_VERSION}")
        return {"resources": [{"name": name} for name in self.served.pop(0)]}

    async def lines(self, path: str, silence: float, **_: str) -> AsyncIterator[bytes]:
        self.watched.append((path, silence))
        await asyncio.Event().wait()
        yield b""


@asynccontextmanager
async def over(server: Server, **options: Any) -> AsyncIterator[KubernetesCluster]:
    async with KubernetesCluster(server, **options) as cluster:  # type: ignore[arg-type]
        yield cluster


async def names(cluster: KubernetesCluster) -> list[str]:
    return [view.name for view in await cluster.pod_views("lab", "j")]


@pytest.mark.parametrize(
    ("uid", "force", "more"),
    [
        ("", False, {}),
        ("u", False, {"preconditions": {"uid": "u"}}),
        ("u", True, {"preconditions": {"uid": "u"}, "gracePeriodSeconds": 0}),
    ],
)
async def test_a_deletion_names_the_uid_and_waits_for_no_kubelet_that_is_gone(
    uid: str, force: bool, more: Manifest
) -> None:
    server = Server({"kind": "Status"})
    async with over(server) as cluster:
        await cluster.delete("Pod", "lab", "p", uid, force)
    plain = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    assert [(method, path, body) for method, path, body, _ in server.sent] == [("DELETE", POD, plain | more)]


async def test_a_pod_of_another_namespace_that_names_the_job_as_its_owner_is_none_of_its_pods() -> None:
    """The API server checks no owner: any tenant may write another one's uid."""
    async with over(Server(pods=[pod("own"), pod("forged", 6, "elsewhere")])) as cluster:
        assert await names(cluster) == ["own"]
        assert [view.name for view in await cluster.orphans("lab", "demo")] == ["own"]


@pytest.mark.parametrize("answer", [{"kind": "Status"}, NotFound("no such pod")])
async def test_a_read_after_a_deletion_that_took_effect_finds_no_pod(answer: Manifest | Exception) -> None:
    async with over(Server(answer, pods=[pod()])) as cluster:
        assert await names(cluster) == ["p"]
        await cluster.delete("Pod", "lab", "p", "uid-p")
        assert await names(cluster) == []


async def test_a_read_after_a_deletion_that_waits_for_a_kubelet_finds_the_pod_deleting() -> None:
    going = pod(version=9)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    async with over(Server(going, pods=[pod()])) as cluster:
        assert await names(cluster) == ["p"]
        await cluster.delete("Pod", "lab", "p", "uid-p")
        (view,) = await cluster.pod_views("lab", "j")
        assert view.deleting


async def test_a_read_after_a_creation_finds_what_carries_the_operators_label() -> None:
    foreign = pod("foreign", 9)
    del foreign["metadata"]["labels"][LABEL_JOB_UID]
    async with over(Server(pod("made", 8), foreign)) as cluster:
        assert await names(cluster) == []
        for manifest in (pod("made"), foreign):
            await cluster.create({"apiVersion": "v1", **manifest})
        assert await names(cluster) == ["made"]


async def test_a_creation_in_a_namespace_that_is_gone_is_denied_and_may_succeed_later() -> None:
    async with over(Server(NotFound("namespaces lab not found"))) as cluster:
        with pytest.raises(Denied, match="namespaces lab not found"):
            await cluster.create({"apiVersion": "v1", **pod()})


async def test_a_status_of_an_object_that_is_gone_is_a_conflict() -> None:
    async with over(Server(NotFound("no such job"))) as cluster:
        with pytest.raises(Conflict, match="TrainingJob lab/demo is gone"):
            await cluster.patch_status("TrainingJob", "lab", "demo", {}, "5")


async def test_a_status_is_applied_to_its_version_and_what_is_left_over_is_removed_from_that_which_was_stored() -> None:
    server = Server(job(8, state="Running", restored=1), job(9, state="Running"))
    async with over(server) as cluster:
        stored = await cluster.patch_status("TrainingJob", "lab", "demo", {"state": "Running"}, "5")
    (_, path, applied, apply), (_, _, removed, merge) = server.sent
    assert (path, apply, merge) == (STATUS, APPLY, MERGE)
    assert (applied["metadata"], applied["status"]) == ({"name": "demo", "resourceVersion": "5"}, {"state": "Running"})
    assert removed == {"metadata": {"resourceVersion": "8"}, "status": {"restored": None}}
    assert stored["metadata"]["resourceVersion"] == "9"


async def test_only_the_version_of_the_last_own_write_to_a_job_is_no_news_of_it() -> None:
    async with over(Server(job(8), job(9))) as cluster:
        assert cluster.note(WatchEvent("MODIFIED", job(7)))
        for _ in range(2):
            await cluster.patch_status("TrainingJob", "lab", "demo", {}, "7")
        news = [cluster.note(WatchEvent("MODIFIED", job(version))) for version in (8, 9, 10)]
        assert news == [True, False, True]
        assert cluster.note(WatchEvent("DELETED", job(9)))
        assert cluster.note(WatchEvent("MODIFIED", job(9)))  # it is another one that a restored backup has made


async def test_a_subscriber_gets_the_changes_of_its_namespace_and_its_labels_alone() -> None:
    created = [pod("other", 8, "elsewhere"), pod("unlabelled", 9), pod("b", 10, team="x")]
    seen, listed = list[str](), [pod("a", team="x"), pod("c")]
    async with over(Server(*created, pods=listed)) as cluster:

        async def follow() -> None:
            async for change in cluster.watch("Pod", "lab", {LABEL_JOB: "demo"}):
                seen.append(f"{change.kind} {change.object['metadata']['name']}")

        following = asyncio.create_task(follow())
        await asyncio.sleep(1)
        for manifest in created:
            await cluster.create({"apiVersion": "v1", **manifest})
        await asyncio.sleep(1)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert seen == ["ADDED a", "ADDED c", "ADDED unlabelled", "ADDED b"]


async def test_nodes_are_unknown_without_the_right_to_read_them_and_none_with_it() -> None:
    async with over(Server(nodes=Denied("Forbidden", "no right"))) as cluster:
        assert await cluster.nodes() is None
    async with over(Server()) as cluster:
        assert await cluster.nodes() == {}


async def test_the_silence_is_that_of_the_quietest_stream_and_each_stream_bears_as_much_as_is_given() -> None:
    clock, server = asyncio.get_running_loop().time, Server()
    async with over(server, silence=55.0) as cluster:
        assert cluster.silence(clock()) == 0.0
        await cluster.pod_views("lab", "j")
        await asyncio.sleep(30)
        await cluster.nodes()
        await asyncio.sleep(5)
        assert cluster.silence(clock()) == pytest.approx(35, abs=0.1)
    assert [silence for _, silence in server.watched] == [55.0, 55.0]


async def test_an_operator_of_some_namespaces_follows_each_by_itself_and_what_has_no_namespace_once() -> None:
    server = Server()
    async with over(server, namespaced=True) as cluster:
        for namespace in ("lab", "team", "lab"):
            await cluster.pod_views(namespace, "j")
            await cluster.list("NodeQuarantine", namespace)
        await asyncio.sleep(1)
    pods, quarantines = (
        [f"/api/v1/namespaces/{n}/pods" for n in ("lab", "team")],
        f"/apis/{API_VERSION}/nodequarantines",
    )
    assert sorted(path for path, _ in server.watched) == sorted([*pods, quarantines])


async def test_kinds_that_are_installed_one_after_the_other_are_awaited() -> None:
    clock, server = asyncio.get_running_loop().time, Server()
    server.served = [[], ["trainingjobs"], ["trainingjobs", "datasources", "datamixes"]]
    async with over(server) as cluster:
        began = clock()
        await cluster.served(["trainingjobs", "datasources"], pause=3.0)
    assert (clock() - began, server.served) == (6.0, [])


async def test_kinds_that_are_missing_are_said_once_until_others_are(caplog: pytest.LogCaptureFixture) -> None:
    """It looks each two seconds, perhaps for days."""
    server = Server()
    server.served = [*[[]] * 9, *[["trainingjobs"]] * 9, ["trainingjobs", "datasources"]]
    async with over(server) as cluster:
        await cluster.served(["trainingjobs", "datasources"])
    said = [record.getMessage().split(": ")[2] for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["datasources, trainingjobs; install the CRDs", "datasources; install the CRDs"]


async def test_a_pod_leaves_the_queue_by_its_uid_and_another_one_that_has_its_name_stays_there() -> None:
    other = Refused("Invalid", "metadata.uid: Invalid value: field is immutable")
    server = Server(pod(version=8), other, NotFound("no such pod"), Refused("Invalid", "annotations: too long"))
    async with over(server) as cluster:
        for _ in range(3):
            await cluster.leave_queue("lab", "group", "p", "uid-p")
        with pytest.raises(Refused, match="too long"):
            await cluster.leave_queue("lab", "group", "p", "uid-p")
    mark = {"metadata": {"uid": "uid-p", "annotations": {RETRIABLE: "false"}}}
    assert server.sent == [("PATCH", POD, mark, MERGE)] * 4
