"""An API server that is busy, refuses, forgets, or falls silent: what the operator makes of it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from coxswain.errors import Refused, Retryable
from coxswain.names import LABEL_INCARNATION, LABEL_INDEX, LABEL_JOB, LABEL_JOB_UID, LABEL_ROLE
from coxswain_operator.children.common import CONTENT
from coxswain_operator.cluster import AlreadyExists, Conflict, Denied
from coxswain_operator.kubernetes import Connection, KubernetesCluster, find_access
from coxswain_operator.kubernetes.connection import Busy, Expired, NotFound
from coxswain_operator.leader import Timing
from coxswain_operator.views import Manifest
from coxswain_operator.workqueue import RequeueDelay, WorkQueue
from tests.answering import answering
from tests.integration.apiserver import ApiServer
from tests.integration.operator_parts import config_map, connected, new_namespace

OWNER = {"apiVersion": "coxswain.dev/v1alpha1", "kind": "TrainingJob", "controller": True}


def pod(name: str, version: int) -> Manifest:
    labels = {LABEL_JOB_UID: "j", LABEL_ROLE: "trainer", LABEL_INDEX: "0", LABEL_INCARNATION: "0"}
    head = {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(version), "labels": labels}
    return {"metadata": {**head, "ownerReferences": [{**OWNER, "name": "demo", "uid": "j"}]}}


def page(*items: Manifest, version: int, more: str = "") -> web.Response:
    return web.json_response({"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)})


async def names_after(cluster: KubernetesCluster, wanted: list[str]) -> None:
    async with asyncio.timeout(60):
        while sorted(p.name for p in await cluster.pod_views("n", "j")) != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [{"uid": "j", "name": "demo"}],
        [{**OWNER, "kind": "ReplicaSet", "apiVersion": "apps/v1", "name": "web", "uid": "r"}],
        [{**OWNER, "apiVersion": "example.org/v1", "name": "demo", "uid": "e"}],
        [{**OWNER, "name": "another", "uid": "a"}],
    ],
    ids=["none", "not the controller", "a ReplicaSet", "another group's TrainingJob", "another job"],
)
async def test_a_pod_with_a_jobs_labels_and_another_owner_is_neither_its_pod_nor_an_orphan_to_delete(
    owners: list[Manifest],
) -> None:
    foreign, own = pod("foreign", 5), pod("own", 6)
    foreign["metadata"] |= {"ownerReferences": owners}
    for manifest in (foreign, own):
        manifest["metadata"]["labels"][LABEL_JOB] = "demo"

    async def answer(_: web.Request) -> web.StreamResponse:
        return page(foreign, own, version=7)

    async with answering(answer) as connection, KubernetesCluster(connection) as cluster:
        assert [p.name for p in await cluster.pod_views("n", "j")] == ["own"]
        assert [p.name for p in await cluster.orphans("n", "demo", "j")] == []
        assert [p.name for p in await cluster.orphans("n", "demo")] == ["own"]


async def test_a_busy_server_is_asked_again_no_sooner_than_it_says_and_each_answer_is_counted() -> None:
    calls: list[float] = []

    async def answer(_: web.Request) -> web.StreamResponse:
        calls.append(asyncio.get_running_loop().time())
        busy = web.Response(status=429, headers={"Retry-After": "1"})
        return busy if len(calls) == 1 else web.json_response({"kind": "Ok"})

    counted: list[tuple[str, int]] = []
    async with answering(answer, on_response=lambda *answered: counted.append(answered)) as connection:
        assert await connection.call("GET", "/x") == {"kind": "Ok"}
    assert calls[1] - calls[0] >= 1
    assert counted == [("GET", 429), ("GET", 200)]


@pytest.mark.parametrize("after", ["²", "-1", "Wed, 21 Oct 2026 07:28:00 GMT", ""])
async def test_a_pause_that_is_no_number_of_seconds_is_none(after: str) -> None:
    answers = [web.Response(status=429, headers={"Retry-After": after}), web.json_response({"kind": "Ok"})]

    async def answer(_: web.Request) -> web.StreamResponse:
        return answers.pop(0)

    async with answering(answer) as connection:
        assert await connection.call("GET", "/x") == {"kind": "Ok"}


async def test_each_attempt_shows_the_token_of_its_moment() -> None:
    """A kubelet writes another one, and the server takes the former no more."""
    shown, tokens = list[str](), iter(("Bearer old", "Bearer new", "Bearer newer"))

    async def answer(request: web.Request) -> web.StreamResponse:
        shown.append(request.headers["Authorization"])
        return web.json_response({}, status=401 if shown[-1] == "Bearer old" else 200)

    async with answering(answer, lambda: next(tokens)) as connection:
        assert await connection.call("GET", "/x") == {}
        assert [line async for line in connection.lines("/x", 1.0)] == []
    assert shown == ["Bearer old", "Bearer new", "Bearer newer"]


LONG = b"x" * 2**20  # more than arrives at once


@pytest.mark.parametrize(("torn", "lines"), [(False, [b"a", LONG]), (True, [b"a", LONG, b"half"])])
async def test_a_line_of_any_length_is_a_message_of_a_watch_and_one_without_an_end_is_none(
    torn: bool, lines: list[bytes]
) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"a\n" + LONG + b"\nhalf")

    async with answering(answer) as connection:
        assert [line async for line in connection.lines("/x", 1.0, torn)] == lines


async def test_a_server_that_goes_on_failing_is_retryable_and_quoted() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=503, text="etcd has no leader")

    async with answering(answer) as connection:
        with pytest.raises(Retryable, match=r"GET /x did not succeed within 2 s.*etcd has no leader"):
            async with asyncio.timeout(8):  # the connection's own deadline is 10 s
                await connection.call("GET", "/x", deadline=2.0)


async def test_an_operator_that_may_have_lost_its_lease_reads_and_sends_no_write() -> None:
    sent, leads = list[str](), True

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal leads
        leads = False  # also between two attempts of one request
        sent.append(request.method)
        return web.json_response({}, status=200 if request.method == "GET" else 503)

    async with answering(answer, may_write=lambda: leads) as connection:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            with pytest.raises(Retryable, match=f"{method} /x was not sent: the Lease is lost"):
                await connection.call(method, "/x")
        assert await connection.call("GET", "/x") == {}
    assert sent == ["POST", "GET"]


async def test_an_answer_that_is_no_json_is_that_of_no_server_and_quoted() -> None:
    """A proxy on the way may show a page of its own, with code 200."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>please log in</html>")

    async with answering(answer) as connection:
        with pytest.raises(Retryable, match=r"GET /x: the answer is no JSON: .*please log in"):
            await connection.call("GET", "/x")


@pytest.mark.parametrize(("status", "busy"), [(429, True), (500, True), (503, True), (401, False), (408, False)])
async def test_an_answer_of_a_busy_server_differs_from_none(status: int, busy: bool) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status)

    async with answering(answer) as connection:
        with pytest.raises(Retryable) as call:
            await connection.call("GET", "/x", deadline=0.1)
        with pytest.raises(Retryable) as watch:
            await anext(connection.lines("/x", 1.0))
    assert [isinstance(found.value, Busy) for found in (call, watch)] == [busy, busy]


async def test_a_server_that_does_not_answer_within_the_deadline_is_not_asked_again_behind_it() -> None:
    calls, over = list[str](), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        calls.append(request.path)
        await over.wait()
        return web.Response(status=503)

    async with answering(answer) as connection:
        with pytest.raises(Retryable, match=r"GET /x did not succeed within 0\.5 s: no answer"):
            await connection.call("GET", "/x", deadline=0.5)
        over.set()
    assert len(calls) < 2


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Expired),
    ],
)
async def test_what_stands_in_the_way_of_a_request_is_known_by_code_and_reason(
    status: int, reason: str, error: type[Exception]
) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "Status", "reason": reason, "message": "in its words"}, status=status)

    async with answering(answer) as connection:
        with pytest.raises(error, match="GET /x: in its words"):
            await connection.call("GET", "/x")
        with pytest.raises(error, match="GET /x: in its words"):
            await anext(connection.lines("/x", 1.0))


WEBHOOK = 'admission webhook "policy.example" denied the request: no'
POLICY = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"


@pytest.mark.parametrize("status", [400, 403, 404, 405, 413, 422])
@pytest.mark.parametrize("text", ["no", WEBHOOK, POLICY])
async def test_only_what_no_cluster_takes_is_refused_for_good(status: int, text: str) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "Status", "reason": "Why", "message": text}, status=status)

    async with answering(answer) as connection, KubernetesCluster(connection) as cluster:
        with pytest.raises(Refused, match=re.escape(text)) as refusal:
            await cluster.create(config_map("n"))
    assert isinstance(refusal.value, Denied) is (status in (403, 404, 405) or text != "no")


@pytest.mark.parametrize("served", [("v1beta2", "v1beta1"), ("v1beta2",), ("v1beta1",), ()])
async def test_a_group_leaves_its_queue_in_whatever_version_kueue_serves(served: tuple[str, ...]) -> None:
    deleted: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        version = request.path.split("/")[3]
        if version not in served:
            return web.json_response({"kind": "Status", "reason": "NotFound"}, status=404)
        deleted.append(version)
        return web.json_response({"kind": "Status", "status": "Success"})

    async with answering(answer) as connection, KubernetesCluster(connection) as cluster:
        await cluster.leave_queue("n", "group", "")
    assert deleted == [*served[:1]]


ADMITTED = {
    "conditions": [{"type": "Admitted", "status": "True"}],
    "admission": {"podSetAssignments": [{"name": "loader", "count": 1}, {"name": "trainer", "count": 2}]},
}
EVICTED = {
    **ADMITTED,
    "conditions": [*ADMITTED["conditions"], {"type": "Evicted", "status": "True", "message": "an urgent job"}],
}


@pytest.mark.parametrize("served", [("v1beta2", "v1beta1"), ("v1beta2",), ("v1beta1",), ()])
async def test_what_kueue_admits_is_read_in_whatever_version_it_serves(served: tuple[str, ...]) -> None:
    statuses = {"waits": None, "runs": ADMITTED, "gone": EVICTED}
    items = [
        {"metadata": {"name": name, "annotations": {CONTENT: name}}, "status": status}
        for name, status in statuses.items()
    ]

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.query["labelSelector"] == f"{LABEL_JOB_UID}=j"
        if request.path.split("/")[3] not in served:
            return web.json_response({"kind": "Status", "reason": "NotFound"}, status=404)
        return web.json_response({"items": items})

    async with answering(answer) as connection, KubernetesCluster(connection) as cluster:
        found = await cluster.admissions("n", "j")
    if not served:
        assert found is None
        return
    assert [(w.name, w.content, w.trainers, w.message) for w in found or ()] == [
        ("waits", "waits", None, ""), ("runs", "runs", 2, ""), ("gone", "gone", None, "an urgent job"),
    ]  # fmt: skip


async def test_workloads_are_asked_for_again_once_one_is_made_or_deleted() -> None:
    asked: list[str] = []
    made = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "w", "namespace": "n"},
        "spec": {},
    }

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.method)
        return web.json_response({"items": [], "metadata": {"name": "w"}})

    async with answering(answer) as connection, KubernetesCluster(connection) as cluster:
        for change in (None, cluster.create(made), cluster.leave_queue("n", "w", "")):
            if change is not None:
                await change
            for _ in range(2):
                await cluster.admissions("n", "j")
    assert asked == ["GET", "POST", "GET", "DELETE", "GET"]


async def test_an_operator_that_may_not_list_workloads_takes_a_job_for_one_without() -> None:
    """Its attempt to make one then names the right that it lacks."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "Status", "reason": "Forbidden", "message": "no"}, status=403)

    async with answering(answer) as connection, KubernetesCluster(connection) as cluster:
        assert await cluster.admissions("n", "j") == ()


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
async def test_a_workload_is_made_with_the_value_of_its_class_which_must_exist(version: str) -> None:
    made: list[Manifest] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.split("/")[3] != version or request.path.endswith("/missing"):
            return web.json_response({"kind": "Status", "reason": "NotFound"}, status=404)
        if request.method == "GET":
            return web.json_response({"value": 1000})
        made.append(await request.json())
        return web.json_response(made[-1], status=201)

    def of_class(name: str) -> Manifest:
        ref = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": name}
        spec = {"podSets": [], "priorityClassRef": ref}
        head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload"}
        return {**head, "metadata": {"name": "g", "namespace": "n"}, "spec": spec}

    async with answering(answer) as connection, KubernetesCluster(connection) as cluster:
        await cluster.create(of_class("urgent"))
        with pytest.raises(Denied, match="WorkloadPriorityClass missing does not exist"):
            await cluster.create(of_class("missing"))
    assert [(m["apiVersion"], m["spec"]["priority"]) for m in made] == [(f"kueue.x-k8s.io/{version}", 1000)]


async def test_long_lists_are_read_in_pages() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            await asyncio.sleep(60)
        if request.query.get("continue") == "two":
            return page(pod("b", 2), version=9)
        return page(pod("a", 1), version=9, more="two")

    async with answering(answer) as connection, KubernetesCluster(connection) as cluster:
        assert [p.name for p in await cluster.pod_views("n", "j")] == ["a", "b"]


async def test_a_watch_that_is_too_far_behind_is_followed_by_a_list_with_what_was_missed() -> None:
    lists = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal lists
        if "watch" not in request.query:
            lists += 1
            return page(pod("old", 1), version=5) if lists == 1 else page(pod("new", 8), version=9)
        if lists == 1:
            gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
            return web.Response(body=msgspec.json.encode(gone) + b"\n")
        await asyncio.sleep(60)
        raise AssertionError

    async with answering(answer) as connection, KubernetesCluster(connection) as cluster:
        changes = cluster.watch("Pod", "n")
        seen = [await anext(changes) for _ in range(3)]
        assert [(c.kind, c.object["metadata"]["name"]) for c in seen] == [
            ("ADDED", "old"), ("ADDED", "new"), ("DELETED", "old"),
        ]  # fmt: skip


async def test_a_stream_that_falls_silent_is_opened_again() -> None:
    lists = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal lists
        if "watch" not in request.query:
            lists += 1
            return page(pod(f"p{lists}", lists), version=lists)
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(60)
        return response

    async with answering(answer) as connection, KubernetesCluster(connection, silence=0.2) as cluster:
        await names_after(cluster, ["p1"])
        await names_after(cluster, ["p2"])


async def test_what_the_operator_may_not_do_is_denied_in_the_servers_words(api: ApiServer, tmp_path: Path) -> None:
    namespace, powerless = new_namespace(api), tmp_path / "kubeconfig"
    powerless.write_text(api.kubeconfig.read_text().replace(api.token, _powerless(api, namespace)))
    async with Connection(find_access(powerless)) as connection, KubernetesCluster(connection) as cluster:
        with pytest.raises(Denied, match=r'cannot create resource "configmaps" in API group "" in the namespace'):
            await cluster.create(config_map(namespace))


async def test_what_the_api_forbids_is_refused_in_its_words(api: ApiServer) -> None:
    namespace = new_namespace(api)
    async with connected(api) as cluster:
        wrong = config_map(namespace) | {"data": {"a/b": "c"}}
        with pytest.raises(Refused, match=r"a valid config key must consist of") as refusal:
            await cluster.create(wrong)
    assert refusal.value.reason == "Invalid" and not isinstance(refusal.value, Denied)


async def test_a_field_that_the_server_does_not_know_is_refused_and_not_dropped(api: ApiServer) -> None:
    namespace = new_namespace(api)
    async with connected(api) as cluster:
        with pytest.raises(Refused, match=r'unknown field "dta"') as refusal:
            await cluster.create(config_map(namespace) | {"dta": {}})
    assert not isinstance(refusal.value, Denied)


async def test_changes_by_others_arrive(api: ApiServer) -> None:
    namespace = new_namespace(api)
    async with connected(api) as cluster:
        changes = cluster.watch("ConfigMap", namespace)
        await cluster.create(config_map(namespace))
        first = await anext(changes)
        api.http.delete(f"/api/v1/namespaces/{namespace}/configmaps/c")
        second = await asyncio.wait_for(anext(changes), 60)
    assert (first.kind, second.kind) == ("ADDED", "DELETED")


async def test_a_turn_that_fails_is_repeated_and_rings_meanwhile_are_one_turn() -> None:
    turns = 0
    done = asyncio.Event()

    async def turn(key: Any) -> RequeueDelay | None:
        nonlocal turns
        turns += 1
        if turns == 1:
            raise Retryable("away")
        done.set()
        return RequeueDelay(0.0, 60.0)

    async with WorkQueue(turn) as queue:
        for _ in range(100):
            queue.add(("n", "demo"))
        await asyncio.wait_for(done.wait(), 60)
    assert turns == 2


def test_lease_times_that_leave_no_margin_are_refused() -> None:
    with pytest.raises(Refused, match="each must be longer than the next"):
        Timing(lease=10, renew=10, retry=2)


def _powerless(api: ApiServer, namespace: str) -> str:
    """The token of a service account without any right."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    assert api.http.post(path, json={"metadata": {"name": "unused"}}).is_success
    answer = api.http.post(f"{path}/unused/token", json={"spec": {"audiences": [], "expirationSeconds": 600}})
    assert answer.is_success, answer.text
    return str(answer.json()["status"]["token"])
