"""A TrainingJob's lifecycle on a real API server: what kubectl shows, which manager owns the status, and crashes at any write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from coxswain.names import ANNOTATION_RETRY, API_VERSION
from coxswain.wire import Fault
from coxswain_operator.controller import Controller
from coxswain_operator.kubernetes import KubernetesCluster
from coxswain_operator.reconcile.actions import WriteStatus
from coxswain_operator.views import PodView
from coxswain_operator.workqueue import Key, RequeueDelay, WorkQueue
from tests.fake_coordinator import FakeCoordinator
from tests.integration.apiserver import ApiServer
from tests.integration.operator_parts import MERGE, Kubelet, Manifest, apply_all, connected, new_namespace
from tests.unit.fake_cluster import report, report_text

MEMBERS = ["demo-coordinator-0", "demo-loader-0-0", "demo-trainer-0-0", "demo-trainer-1-0"]
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}


class Crash(BaseException):
    """The operator's process is gone. No `except Exception` survives it."""


class Mortal:
    """A cluster whose client crashes before its `last`-th write."""

    def __init__(self, cluster: KubernetesCluster, last: int) -> None:
        self._cluster, self._left = cluster, last

    def __getattr__(self, name: str) -> Any:
        if name in ("create", "delete", "patch_status", "publish"):
            self._left -= 1
            if self._left < 0:
                raise Crash
        return getattr(self._cluster, name)


def job(api: ApiServer, namespace: str) -> Manifest:
    found: Manifest = api.http.get(api.path("trainingjobs", "demo", namespace=namespace)).json()
    return found


def state(api: ApiServer, namespace: str) -> str:
    conditions = job(api, namespace).get("status", {}).get("conditions", [])
    return next((c["reason"] for c in conditions if c["type"] == "Succeeded"), "")


async def passes(cluster: Any, namespace: str, control: FakeCoordinator | None = None, count: int = 6) -> None:
    controller = Controller(cluster, control or FakeCoordinator())
    for _ in range(count):
        await controller.pass_once(namespace, "demo")


async def started(api: ApiServer, cluster: KubernetesCluster, namespace: str, control: FakeCoordinator) -> Kubelet:
    """A job whose pods are ready and whose coordinator says Running, as the operator's cache has it too."""
    kubelet = Kubelet(api, namespace)
    await passes(cluster, namespace)
    kubelet.run_all()
    await until_all(cluster, namespace, lambda pod: pod.phase == "Running")
    control.job_report = report("Running", 10)
    await passes(cluster, namespace, control)
    return kubelet


async def until_all(cluster: KubernetesCluster, namespace: str, holds: Callable[[PodView], bool]) -> None:
    """The operator has heard of it."""
    async with asyncio.timeout(60):
        job = (await cluster.list("TrainingJob", namespace))[0]
        while not all(holds(pod) for pod in await cluster.pod_views(namespace, job["metadata"]["uid"])):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until(holds: Callable[[], bool], deadline: float = 60) -> None:
    async with asyncio.timeout(deadline):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_an_applied_job_gets_its_pods_and_all_other_children(api: ApiServer) -> None:
    namespace = new_namespace(api)
    apply_all(api, namespace)
    async with connected(api) as cluster:
        await passes(cluster, namespace)
        job = await cluster.get("TrainingJob", namespace, "demo")
        assert job is not None and await cluster.get("Secret", namespace, job["status"]["tokenSecret"]) is not None
        kinds = ("ConfigMap", "Service", "NetworkPolicy")
        assert [len(await cluster.list(kind, namespace)) for kind in kinds] == [2, 1, 1]
    assert Kubelet(api, namespace).names() == MEMBERS


async def test_a_pod_that_is_replaced_after_an_edit_mounts_what_its_peers_mount(api: ApiServer) -> None:
    namespace, control = new_namespace(api), FakeCoordinator()
    apply_all(api, namespace)
    async with connected(api) as cluster:
        kubelet = await started(api, cluster, namespace, control)
        before = sorted((c["metadata"]["name"], c["data"]) for c in await cluster.list("ConfigMap", namespace))
        place = api.path("datasources", "code", namespace=namespace)
        assert api.http.patch(place, json={"spec": {"maxRejected": 5}}, headers=MERGE).is_success
        kubelet.let_go("demo-trainer-1-0")
        await until_named(cluster, control, namespace, "DataSource code: maxRejected 0 -> 5", kubelet)
        assert sorted((c["metadata"]["name"], c["data"]) for c in await cluster.list("ConfigMap", namespace)) == before
    mounted = {p["metadata"]["name"]: p["spec"]["volumes"][0]["configMap"]["name"] for p in kubelet.pods()}
    assert mounted["demo-trainer-1-1"] == mounted["demo-trainer-0-0"] == before[-1][0]


async def until_named(
    cluster: KubernetesCluster, control: FakeCoordinator, namespace: str, words: str, kubelet: Kubelet
) -> None:
    """Passes until the job says so, and the lost trainer has its successor."""
    async with asyncio.timeout(60):
        while True:
            await passes(cluster, namespace, control, 1)
            (found,) = await cluster.list("TrainingJob", namespace)
            said = next(c["message"] for c in found["status"]["conditions"] if c["type"] == "Validated")
            if words in said and "demo-trainer-1-1" in kubelet.names():
                return
            await asyncio.sleep(0.02)


async def test_a_running_job_shows_its_state_and_progress_in_columns_and_events(api: ApiServer) -> None:
    namespace, control = new_namespace(api), FakeCoordinator()
    apply_all(api, namespace)
    async with connected(api) as cluster:
        await started(api, cluster, namespace, control)
    table = api.http.get(api.path("trainingjobs", "demo", namespace=namespace), headers=TABLE).json()
    cells = dict(zip([c["name"] for c in table["columnDefinitions"]], table["rows"][0]["cells"], strict=True))
    wanted = {"STATE": "Running", "READY": "2/2", "STEP": 10, "RESTARTS": 0, "LOSS": "2.5000"}
    assert {name: cells[name] for name in wanted} == wanted
    events = api.http.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events").json()["items"]
    assert {"Validated", "GangStarted"} <= {e["reason"] for e in events}
    assert {e["regarding"]["uid"] for e in events} == {job(api, namespace)["metadata"]["uid"]}


async def test_a_job_that_says_nothing_new_is_not_written_again(api: ApiServer) -> None:
    namespace, control = new_namespace(api), FakeCoordinator()
    apply_all(api, namespace)
    async with connected(api) as cluster:
        await started(api, cluster, namespace, control)
        before = job(api, namespace)["metadata"]["resourceVersion"]
        await passes(cluster, namespace, control)
    assert job(api, namespace)["metadata"]["resourceVersion"] == before


async def test_a_job_that_has_a_condition_of_another_controller_is_not_written_again(api: ApiServer) -> None:
    namespace, control = new_namespace(api), FakeCoordinator()
    apply_all(api, namespace)
    since = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    theirs = {"type": "PolicyChecked", "status": "True", "reason": "Ok", "message": "", **since}
    body = {"apiVersion": API_VERSION, "kind": "TrainingJob", "metadata": {"name": "demo"}}
    async with connected(api) as cluster:
        await started(api, cluster, namespace, control)
    place = f"{api.path('trainingjobs', 'demo', namespace=namespace)}/status"
    content = json.dumps({**body, "status": {"conditions": [theirs]}})
    assert api.http.patch(place, params={"fieldManager": "policy"}, content=content, headers=APPLY).is_success
    async with connected(api) as cluster:
        decision = await Controller(cluster, control).pass_once(namespace, "demo")
    assert decision is not None and decision.of(WriteStatus) == ()
    assert "PolicyChecked" in {c["type"] for c in job(api, namespace)["status"]["conditions"]}


async def test_what_a_backup_restored_of_the_status_goes_and_conditions_of_others_stay(api: ApiServer) -> None:
    namespace, control = new_namespace(api), FakeCoordinator()
    apply_all(api, namespace)
    async with connected(api) as cluster:
        await started(api, cluster, namespace, control)
    status = job(api, namespace)["status"]
    since = "2026-01-01T00:00:00Z"
    theirs = {"type": "PolicyChecked", "status": "True", "reason": "Ok", "message": "", "lastTransitionTime": since}
    old = {"name": "trainer-7", "number": 3, "since": since, "delaySeconds": 60}
    restored = status | {
        "conditions": [*status["conditions"], theirs],
        "incarnations": [{"name": "all", "number": 1, "since": since, "delaySeconds": 4}, old],
        "keptNode": {"node": "gpu-7", "message": "", "until": since},
        "trainers": status["trainers"] | {"configured": 4},
    }
    place = f"{api.path('trainingjobs', 'demo', namespace=namespace)}/status"
    answer = api.http.patch(place, params={"fieldManager": "velero-server"}, json={"status": restored}, headers=MERGE)
    assert answer.is_success, answer.text
    async with connected(api) as cluster:
        written = await cluster.patch_status("TrainingJob", namespace, "demo", status, "")
        decision = await Controller(cluster, control).pass_once(namespace, "demo")
    assert decision is not None and decision.of(WriteStatus) == ()
    assert (
        written["status"] == job(api, namespace)["status"] == status | {"conditions": [*status["conditions"], theirs]}
    )


async def test_a_job_whose_coordinator_leaves_with_0_is_completed(api: ApiServer) -> None:
    namespace, control = new_namespace(api), FakeCoordinator()
    apply_all(api, namespace)
    async with connected(api) as cluster:
        kubelet = await started(api, cluster, namespace, control)
        for name in reversed(MEMBERS):
            kubelet.end(name, 0, report_text("Completed", step=100, reason="StopReached"))
        await until_all(cluster, namespace, lambda pod: pod.phase == "Succeeded")
        await passes(cluster, namespace, control)
    assert state(api, namespace) == "Completed"
    assert kubelet.names() == MEMBERS


async def test_a_failed_job_is_retried_by_its_annotation_and_the_api_server_keeps_what_was_answered(
    api: ApiServer,
) -> None:
    namespace, control = new_namespace(api), FakeCoordinator()
    apply_all(api, namespace)
    async with connected(api) as cluster:
        kubelet = await started(api, cluster, namespace, control)
        kubelet.end("demo-coordinator-0", 2, report_text("Failed", fault=Fault("SourceNotFound", "gone")))
        await until_all(cluster, namespace, lambda pod: pod.role != "coordinator" or pod.phase == "Failed")
        await passes(cluster, namespace)
        assert state(api, namespace) == "Failed"
        path = api.path("trainingjobs", "demo", namespace=namespace)
        patch = {"metadata": {"annotations": {ANNOTATION_RETRY: "1"}}}
        answer = api.http.patch(path, json=patch, headers={"Content-Type": "application/merge-patch+json"})
        assert answer.status_code == 200, answer.text
        async with asyncio.timeout(60):
            while state(api, namespace) == "Failed":
                await passes(cluster, namespace, count=1)
        await passes(cluster, namespace)
    status = job(api, namespace)["status"]
    assert (state(api, namespace), status["retried"], status["attempt"]) == ("Restarting", "1", 1)
    assert status["restarts"] == {"counted": 0, "ignored": 0}


async def test_a_failed_trainer_is_replaced_and_counted(api: ApiServer) -> None:
    namespace, control = new_namespace(api), FakeCoordinator()
    apply_all(api, namespace)
    async with connected(api) as cluster:
        kubelet = await started(api, cluster, namespace, control)
        kubelet.end("demo-trainer-1-0", 1)
        await until_all(
            cluster,
            namespace,
            lambda pod: (pod.name == "demo-trainer-1-0") == (pod.phase == "Failed"),
        )
        await passes(cluster, namespace, control)
    assert job(api, namespace)["status"]["restarts"] == {"counted": 1, "ignored": 0}
    assert kubelet.names() == [*MEMBERS[:3], "demo-trainer-1-1"]


async def test_the_status_is_ours_and_the_spec_is_the_users(api: ApiServer) -> None:
    namespace = new_namespace(api)
    apply_all(api, namespace)
    async with connected(api) as cluster:
        await passes(cluster, namespace)
    fields = job(api, namespace)["metadata"]["managedFields"]
    ours = [f for f in fields if f["manager"] == "coxswain-operator"]
    assert [(f["operation"], f.get("subresource"), set(f["fieldsV1"])) for f in ours] == [
        ("Apply", "status", {"f:status"})
    ]
    assert all("f:status" not in f["fieldsV1"] for f in fields if f not in ours)


@pytest.mark.parametrize("last", range(16))
async def test_an_operator_killed_before_any_write_is_succeeded_by_one_that_creates_nothing_twice(
    api: ApiServer, last: int
) -> None:
    namespace = new_namespace(api)
    apply_all(api, namespace)
    async with connected(api) as cluster:
        with suppress(Crash):
            await passes(Mortal(cluster, last), namespace)
    async with connected(api) as successor:
        await passes(successor, namespace)
    assert Kubelet(api, namespace).names() == MEMBERS
    assert job(api, namespace)["status"]["restarts"] == {"counted": 0, "ignored": 0}


async def test_a_pod_that_vanished_while_no_operator_ran_is_a_loss_that_counts_for_nothing(api: ApiServer) -> None:
    namespace, control = new_namespace(api), FakeCoordinator()
    apply_all(api, namespace)
    async with connected(api) as cluster:
        kubelet = await started(api, cluster, namespace, control)
    kubelet.remove("demo-trainer-0-0")
    async with connected(api) as successor:
        await passes(successor, namespace, control)
    assert "demo-trainer-0-1" in kubelet.names() and len(kubelet.names()) == 4
    assert job(api, namespace)["status"]["restarts"]["counted"] == 0


async def test_turns_for_a_deleted_job_end_and_create_nothing_more(api: ApiServer) -> None:
    namespace = new_namespace(api)
    apply_all(api, namespace)
    async with connected(api) as cluster:
        controller = Controller(cluster, FakeCoordinator(), poll_seconds=0.1)

        async def turn(key: Key) -> RequeueDelay | None:
            return await controller.reconcile_job(*key)

        async with WorkQueue(turn) as queue:
            queue.add((namespace, "demo"))
            await until(lambda: Kubelet(api, namespace).names() == MEMBERS)
            api.http.delete(api.path("trainingjobs", "demo", namespace=namespace))
            await until(lambda: queue.keys == [])
    assert Kubelet(api, namespace).names() == MEMBERS  # the garbage collector's part, which this server lacks
