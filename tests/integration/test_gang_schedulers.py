"""Groups of pods on real API servers: each API takes its group and its pods, and Kubernetes' own scheduler obeys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coxswain.api.crd import crds
from coxswain.api.resolve import resolve
from coxswain.config import JobConfig
from coxswain_operator.children import PodPlan, gangs
from coxswain_operator.children.gangs import BACKENDS, CHOICES
from coxswain_operator.controller import Controller
from coxswain_operator.kubernetes import Connection, find_access
from coxswain_operator.kubernetes.discovery import find_gang_backend
from coxswain_operator.kubernetes.resources import with_groups
from coxswain_operator.reconcile import half_placed
from coxswain_operator.settings import Settings
from e2e.cluster.controlplane import SCHEDULER
from e2e.cluster.process import wait_until
from e2e.tools.other_kubernetes import minor
from tests.charts import NAMESPACE, operator_rights
from tests.fake_coordinator import FakeCoordinator
from tests.integration.apiserver import ApiServer
from tests.integration.operator_parts import Kubelet, Manifest, apply_all, connected, new_namespace, operating, within
from tests.integration.processes import operator
from tests.integration.test_operator_reconcile import job, state, until, until_all
from tests.integration.test_operator_rights import place
from tests.unit.fake_cluster import data_mix, data_source, training_job

pytestmark = [
    pytest.mark.binaries("kube-scheduler", "helm"),
    pytest.mark.skipif(minor() not in (35, 37), reason="no groups, or those of another alpha"),
]

NATIVE, GATE = (
    ("NativePodGroup", "GenericWorkload=true")
    if minor() >= 37
    else ("NativeWorkload", "GenericWorkload=true,GangScheduling=true")
)
BACKEND = BACKENDS[NATIVE]
GATES = {
    "kube-apiserver": [
        "--feature-gates", "GenericWorkload=true", "--runtime-config", f"{BACKEND.api_version}=true",
        "--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition",
    ],
    SCHEDULER: ["--feature-gates", GATE],
}  # fmt: skip
WHOLE = {"type": "integer", "format": "int32"}
# The parts of the published schemas that say what a spec may hold.
SPECS: dict[str, dict[str, Any]] = {
    "scheduling.x-k8s.io/v1alpha1": {
        "minMember": {**WHOLE, "minimum": 1},
        "minResources": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "scheduleTimeoutSeconds": WHOLE,
    },
    "scheduling.volcano.sh/v1beta1": {
        "minMember": WHOLE,
        "minTaskMember": {"type": "object", "additionalProperties": WHOLE},
        "queue": {"type": "string"},
        "priorityClassName": {"type": "string"},
        "minResources": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}


def definition(api_version: str) -> Manifest:
    group, version = api_version.split("/")
    spec = {"type": "object", "properties": SPECS[api_version]}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    names = {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup", "listKind": "PodGroupList"}
    # Groups below k8s.io need an approval; this is the one that scheduler-plugins publishes.
    approval = "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"podgroups.{group}", "annotations": {"api-approved.kubernetes.io": approval}},
        "spec": {
            "group": group, "scope": "Namespaced", "names": names,
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """Kubernetes with its groups on, and a scheduler."""
    with ApiServer((SCHEDULER,), GATES) as api:
        api.install(crds())
        for api_version in SPECS:
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            answer = api.http.post(path, json=definition(api_version))
            assert answer.is_success, answer.text
            wait_until(lambda at=api_version: api.http.get(f"/apis/{at}/podgroups").is_success, api_version, 20)
        yield api


@pytest.mark.parametrize("backend", ["Coscheduling", "Volcano", NATIVE])
def test_the_server_takes_a_group_and_the_pods_that_name_it_without_a_warning(server: ApiServer, backend: str) -> None:
    namespace, settings = new_namespace(server), Settings(gang_backend=backend)
    made = within(namespace, training_job())
    made["metadata"] |= {"uid": "4b1d9f3e-0000-4000-8000-000000000000", "labels": {"volcano.sh/queue-name": "q"}}
    config = resolve(made, [data_source()], [data_mix()], [], made["metadata"]["uid"])
    assert isinstance(config, JobConfig), config
    plan = PodPlan(made, config, settings, 0, 0)
    places = with_groups(backend)
    for manifest in (*gangs.group(made, config, settings, 0), plan.pod("coordinator", 0), plan.pod("trainer-1", 0)):
        strict = {"dryRun": "All", "fieldValidation": "Strict"}
        answer = server.http.post(places[manifest["kind"]].path(namespace), json=manifest, params=strict)
        assert answer.is_success, answer.text
        assert "Warning" not in answer.headers, answer.headers["Warning"]


async def test_discovery_finds_what_each_server_has(server: ApiServer, api: ApiServer) -> None:
    async with Connection(find_access(server.kubeconfig)) as rich, Connection(find_access(api.kubeconfig)) as plain:
        found = {choice: await find_gang_backend(rich, choice) for choice in CHOICES}
        assert (found["Auto"], found["Native"], found["Volcano"]) == (NATIVE, NATIVE, "Volcano")
        assert await find_gang_backend(plain, "Auto") == ""


def test_an_operator_that_is_to_use_what_the_server_lacks_says_so_and_exits(api: ApiServer, tmp_path: Path) -> None:
    child = operator(api.kubeconfig, tmp_path / "log", "--gang-scheduling", "Native")
    assert child.process.wait(timeout=60) == 2
    assert "--gang-scheduling Native: the API server serves no PodGroup of" in (tmp_path / "log").read_text()


@pytest.fixture
def four_nodes(server: ApiServer) -> Iterator[None]:
    """Each has room for one pod."""
    capacity = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "1", "nvidia.com/gpu": "8"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    for n in range(4):
        status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
        answer = server.http.post("/api/v1/nodes", json={"metadata": {"name": f"n{n}"}, "status": status})
        assert answer.is_success, answer.text
    yield
    for pod in server.http.get("/api/v1/pods").json()["items"]:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        server.http.delete(path, params={"gracePeriodSeconds": "0"})
    assert server.http.delete("/api/v1/nodes").is_success


def occupy(server: ApiServer, namespace: str, node: str) -> str:
    """A foreign pod on that node; its path."""
    container = {"name": "c", "image": "i"}
    pod = {"metadata": {"name": f"on-{node}"}, "spec": {"nodeName": node, "containers": [container]}}
    path = f"/api/v1/namespaces/{namespace}/pods"
    answer = server.http.post(path, json=pod)
    assert answer.is_success, answer.text
    return f"{path}/on-{node}"


def chart_access(server: ApiServer, path: Path, values: Manifest) -> Path:
    """A kubeconfig of the operator's account with the rights that the chart gives it for these values."""
    assert server.http.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}}).is_success
    for manifest in operator_rights(values):
        answer = server.http.post(place(manifest), json=manifest)
        assert answer.is_success, answer.text
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/coxswain/token"
    token = server.http.post(account, json={"spec": {"expirationSeconds": 3600}}).json()["status"]["token"]
    return server.access_for(path, token)


@pytest.mark.usefixtures("four_nodes")
async def test_a_gang_holds_no_node_until_the_scheduler_has_one_for_each_of_its_pods(
    server: ApiServer, tmp_path: Path
) -> None:
    access = chart_access(server, tmp_path / "kubeconfig", {"gangScheduling": {"backend": "Native"}})
    namespace, others = new_namespace(server), new_namespace(server)
    foreign = [occupy(server, others, f"n{n}") for n in range(2)]
    pods = Kubelet(server, namespace)

    def nodes() -> list[str]:
        return [p["spec"]["nodeName"] for p in pods.pods() if "nodeName" in p["spec"]]

    def refused() -> list[Manifest]:
        conditions = (c for p in pods.pods() for c in p["status"].get("conditions", ()))
        return [c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]

    apply_all(server, namespace)
    settings = Settings(gang_backend=NATIVE)
    async with operating(access, namespace, FakeCoordinator(), settings=settings):
        await until(lambda: len(pods.names()) == 4 and len(refused()) >= 2)
        await until(lambda: state(server, namespace) == "Queued")
        assert nodes() == []  # two have been found, and are not taken
        for path in foreign:
            assert server.http.delete(path, params={"gracePeriodSeconds": "0"}).is_success
        await until(lambda: len(nodes()) == 4, 60)  # it backs off for up to ten seconds
        (only,) = server.http.get(with_groups(NATIVE)[BACKEND.kind].path(namespace)).json()["items"]
        in_group = BACKEND.pod_spec(only["metadata"]["name"]).items()
        assert all(in_group <= p["spec"].items() for p in pods.pods())
        assert only["metadata"]["ownerReferences"][0]["uid"] == job(server, namespace)["metadata"]["uid"]


@pytest.mark.usefixtures("four_nodes")
async def test_a_start_that_the_scheduler_can_only_half_place_gives_its_nodes_back(server: ApiServer) -> None:
    namespace, others = new_namespace(server), new_namespace(server)
    for n in range(2):
        occupy(server, others, f"n{n}")
    apply_all(server, namespace)
    pods, ahead = Kubelet(server, namespace), [0.0]
    async with connected(server) as cluster:
        controller = Controller(cluster, FakeCoordinator(), lambda: time.time() + ahead[0])

        async def passes_until(holds: Callable[[], bool]) -> None:
            async with asyncio.timeout(30):
                while not holds():
                    await controller.pass_once(namespace, "demo")
                    await asyncio.sleep(0.05)

        def bound() -> list[str]:
            return [p["metadata"]["name"] for p in pods.pods() if "nodeName" in p["spec"]]

        await passes_until(lambda: len(pods.names()) == 4)
        await until(lambda: len(bound()) == 2)
        for name in bound():
            pods.say(name, {"phase": "Running"})
        await until_all(cluster, namespace, lambda pod: pod.phase == "Running" or pod.unscheduled_reason != "")
        ahead[0] = 900 * (1 + half_placed.SPREAD) + 1
        await passes_until(lambda: state(server, namespace) == "Queued")
        await passes_until(lambda: all("deletionTimestamp" in p["metadata"] for p in pods.pods()))
    status = job(server, namespace)["status"]
    assert (status["gang"]["releases"], status["restarts"]) == (1, {"counted": 0, "ignored": 0})
    progressing = next(c for c in status["conditions"] if c["type"] == "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "GangReleased")
