"""Nodes in quarantine, and the scale subresource, on a real API server: kinds, affinity, informer, `cox scale`."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from typer.testing import CliRunner

from coxswain.errors import Refused
from coxswain.names import ANNOTATION_AVOIDS
from coxswain.wire import SizeReply
from coxswain_cli.__main__ import app
from coxswain_operator.cluster import Conflict
from coxswain_operator.controller import Controller
from coxswain_operator.refusals import fault_of
from coxswain_operator.settings import Settings
from coxswain_operator.views import Manifest
from tests.api_samples import sample
from tests.fake_coordinator import FakeCoordinator
from tests.integration.apiserver import ApiServer
from tests.integration.operator_parts import Kubelet, apply_all, connected, new_namespace
from tests.unit.fake_cluster import report

QUARANTINES = "nodequarantines"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
UNPLACED = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}],
}
ZONES = {"nodeSelectorTerms": [
    {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")
]}  # fmt: skip


@pytest.fixture
def node(api: ApiServer) -> Iterator[str]:
    """A node in quarantine; admitted again afterwards."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    answer = api.http.post(api.path(QUARANTINES), json=quarantine(name, evidence="a fan is broken"))
    assert answer.status_code == 201, answer.text
    yield name
    api.http.delete(api.path(QUARANTINES, name))


def quarantine(name: str, **spec: Any) -> Manifest:
    return sample("NodeQuarantine", {"spec.node": name, **{f"spec.{k}": v for k, v in spec.items()}}, name)


def test_kubectl_prints_which_node_why_and_until_when(api: ApiServer, node: str) -> None:
    patch = {"Content-Type": "application/merge-patch+json"}
    until = {"spec": {"until": "2099-01-31T12:00:00+01:00"}}
    assert api.http.patch(api.path(QUARANTINES, node), json=until, headers=patch).is_success
    table = api.http.get(api.path(QUARANTINES, node), headers=TABLE).json()
    cells = {c["name"]: cell for c, cell in zip(table["columnDefinitions"], table["rows"][0]["cells"], strict=True)}
    assert (cells["NODE"], cells["REASON"], cells["UNTIL"]) == (node, "Slow", "2099-01-31T12:00:00+01:00")
    assert (cells["EVIDENCE"], cells["JOB"]) == ("a fan is broken", None)


@pytest.mark.parametrize("until", ["tomorrow", "2026-13-01T00:00:00Z", "2026-01-01", "2026-01-01T25:00:00Z"])
def test_an_end_that_is_no_time_is_refused(api: ApiServer, until: str) -> None:
    answer = api.http.post(api.path(QUARANTINES), json=quarantine("n", until=until), params={"dryRun": "All"})
    assert answer.status_code == 422 and "spec.until" in answer.text


def terms(pod: Manifest) -> list[Manifest]:
    found: list[Manifest] = pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return found


def trainer(kubelet: Kubelet, index: int, besides: str = "") -> Manifest | None:
    """Its pod, or None: the one with the uid `besides` does not count."""
    wanted = {"coxswain.dev/index": str(index), "coxswain.dev/role": "trainer"}
    found = (p for p in kubelet.pods() if wanted.items() <= p["metadata"]["labels"].items())
    return next((p for p in found if p["metadata"]["uid"] != besides), None)


async def passes_until(controller: Controller, namespace: str, found: Callable[[], Any]) -> Any:
    """What the condition gives once it holds."""
    async with asyncio.timeout(30):
        while not (value := found()):
            await controller.pass_once(namespace, "demo")
            await asyncio.sleep(0.05)
    return value


def test_new_pods_avoid_the_node_in_every_alternative_of_their_affinity_until_it_is_admitted(
    api: ApiServer, node: str
) -> None:
    namespace = new_namespace(api)
    template = {"spec": {"affinity": {"nodeAffinity": {REQUIRED: ZONES}}}}
    apply_all(api, namespace, trainers={"count": 2, "template": template})
    kubelet = Kubelet(api, namespace)

    async def scenario() -> None:
        async with connected(api) as cluster:
            controller = Controller(cluster, FakeCoordinator(), settings=Settings(quarantine=True))
            for _ in range(3):
                await controller.pass_once(namespace, "demo")
            first = trainer(kubelet, 1)
            assert first is not None
            field = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
            assert [field in term["matchFields"] for term in terms(first)] == [True, True]
            assert [term["matchExpressions"] for term in terms(first)] == [
                t["matchExpressions"] for t in ZONES["nodeSelectorTerms"]
            ]
            assert node in first["metadata"]["annotations"][ANNOTATION_AVOIDS].split(",")
            kubelet.say(first["metadata"]["name"], UNPLACED)
            assert api.http.delete(api.path(QUARANTINES, node)).is_success
            second = await passes_until(controller, namespace, lambda: trainer(kubelet, 1, first["metadata"]["uid"]))
            assert node not in str(terms(second))

    asyncio.run(scenario())


class Growing(FakeCoordinator):
    """A coordinator that takes every number of trainers at once."""

    async def resize(self, job: Any, trainers: int) -> SizeReply | None:
        return SizeReply("Done", trainers)


def test_a_job_grows_and_shrinks_by_cox_scale_and_the_pods_that_stay_are_the_same(api: ApiServer) -> None:
    namespace = new_namespace(api)
    apply_all(api, namespace, trainers={"count": 2, "minCount": 1, "maxCount": 3})
    kubelet, coordinator = Kubelet(api, namespace), Growing()

    def asks(count: int) -> None:
        place = ("--kubeconfig", str(api.kubeconfig), "--namespace", namespace)
        done = CliRunner().invoke(app, ["scale", "demo", str(count), *place])
        assert (done.exit_code, done.output) == (0, f"{namespace}/demo of {api.url}: asked for {count} trainers\n")

    async def follows(controller: Controller, count: int) -> None:
        async with asyncio.timeout(60):
            while sum("trainer" in name for name in kubelet.names()) != count:
                with suppress(
                    Conflict
                ):  # the job was scaled since it was read: the queue tries again, and so does this
                    await controller.pass_once(namespace, "demo")
                kubelet.run_all()
                for pod in kubelet.pods():
                    if "deletionTimestamp" in pod["metadata"]:
                        kubelet.let_go(pod["metadata"]["name"])
                await asyncio.sleep(0.05)

    async def scenario() -> None:
        async with connected(api) as cluster:
            controller = Controller(cluster, coordinator)
            await follows(controller, 2)
            coordinator.job_report = report("Running", 10)
            before = {p["metadata"]["uid"] for p in kubelet.pods()}
            for count in (3, 1):
                await asyncio.to_thread(asks, count)
                await follows(controller, count)
            assert len({p["metadata"]["uid"] for p in kubelet.pods()} & before) == 3
            stored = api.http.get(api.path("trainingjobs", "demo", namespace=namespace)).json()
            assert stored["status"]["attempt"] == 0 and stored["status"]["trainers"]["desired"] == 1

    asyncio.run(scenario())


def test_cox_scale_says_what_the_server_refuses(api: ApiServer) -> None:
    namespace = new_namespace(api)
    apply_all(api, namespace, trainers={"count": 2, "minCount": 1, "maxCount": 3})
    place = ("--kubeconfig", str(api.kubeconfig), "--namespace", namespace)
    many = CliRunner().invoke(app, ["scale", "demo", "4", *place])
    assert many.exit_code == 2 and "count 4 may not be above maxCount 3" in many.output
    gone = CliRunner().invoke(app, ["scale", "nothing", "2", *place])
    assert gone.exit_code == 2 and f"namespace {namespace} has no TrainingJob nothing" in gone.output


@pytest.fixture
def pool(api: ApiServer) -> Iterator[str]:
    """A node of a pool that uses names again."""
    name = f"pool-{uuid.uuid4().hex[:8]}"
    register(api, name)
    yield name
    api.http.delete(f"/api/v1/nodes/{name}")
    api.http.delete(api.path(QUARANTINES, name))


def register(api: ApiServer, name: str) -> str:
    """As its kubelet does; returns its uid."""
    answer = api.http.post("/api/v1/nodes", json={"metadata": {"name": name}})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["metadata"]["uid"])


def test_a_new_node_of_the_name_of_one_in_quarantine_takes_pods_and_the_operator_deletes_its_object(
    api: ApiServer, pool: str
) -> None:
    namespace = new_namespace(api)
    apply_all(api, namespace, trainers={"count": 1})
    former = api.http.get(f"/api/v1/nodes/{pool}").json()["metadata"]["uid"]
    made = quarantine(pool, nodeUid=former)
    made["metadata"]["labels"] = {"coxswain.dev/job-uid": "another"}
    assert api.http.post(api.path(QUARANTINES), json=made).status_code == 201
    kubelet = Kubelet(api, namespace)

    async def scenario() -> None:
        async with connected(api) as cluster:
            controller = Controller(cluster, FakeCoordinator(), settings=Settings(quarantine=True))
            first = await passes_until(controller, namespace, lambda: trainer(kubelet, 0))
            assert pool in str(terms(first))
            kubelet.say(first["metadata"]["name"], UNPLACED)
            assert api.http.delete(f"/api/v1/nodes/{pool}").is_success
            newcomer = register(api, pool)
            second = await passes_until(controller, namespace, lambda: trainer(kubelet, 0, first["metadata"]["uid"]))
            assert pool not in str(second["spec"].get("affinity"))
            await passes_until(
                controller, namespace, lambda: api.http.get(api.path(QUARANTINES, pool)).status_code == 404
            )
        (said,) = readmissions(api, namespace)  # written before the cluster is left
        assert f"{pool}: another node has that name now (uid {newcomer}; in quarantine was {former})" in said

    asyncio.run(scenario())


def readmissions(api: ApiServer, namespace: str) -> list[str]:
    events = api.http.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events").json()["items"]
    return [e["note"] for e in events if e["reason"] == "NodeReadmitted"]


async def test_a_quarantine_with_a_field_that_older_kinds_lack_is_refused_with_the_way_out(api: ApiServer) -> None:
    """As where the operator is newer than the CustomResourceDefinitions."""
    async with connected(api) as cluster:
        with pytest.raises(Refused) as refused:
            await cluster.create(quarantine("node-of-tomorrow", newerField="x"))
    text = fault_of("NodeQuarantine node-of-tomorrow", refused.value).message
    assert 'unknown field "spec.newerField"' in text
    assert text.endswith("; apply the CustomResourceDefinitions of the operator's release")
