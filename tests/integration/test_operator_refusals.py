"""What a real API server does not take: waited for and named, or the end of the job; wrong templates with their paths."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coxswain_operator.controller import Controller
from coxswain_operator.kubernetes import KubernetesCluster
from tests.api_samples import sample
from tests.fake_coordinator import FakeCoordinator
from tests.integration.apiserver import ApiServer
from tests.integration.operator_parts import Manifest, apply_all, connected, new_namespace
from tests.integration.test_operator_reconcile import MEMBERS, job, state


async def look(cluster: KubernetesCluster, controller: Controller, namespace: str, passes: int = 6) -> None:
    for _ in range(passes):
        await controller.pass_once(namespace, "demo")


async def until_said(api: ApiServer, controller: Controller, namespace: str, text: str) -> None:
    """Passes until the job's summary has the text: messages alone are written every two seconds."""
    async with asyncio.timeout(20):
        while not summary(api, namespace).startswith(text):
            await controller.pass_once(namespace, "demo")
            await asyncio.sleep(0.1)


def summary(api: ApiServer, namespace: str) -> str:
    conditions = job(api, namespace)["status"]["conditions"]
    found: str = next(c["message"] for c in conditions if c["type"] == "Succeeded")
    return found


def pods(api: ApiServer, namespace: str) -> list[Manifest]:
    found: list[Manifest] = api.http.get(f"/api/v1/namespaces/{namespace}/pods").json()["items"]
    return found


async def test_a_priority_class_that_comes_later_is_waited_for(api: ApiServer) -> None:
    namespace = new_namespace(api)
    apply_all(api, namespace, scheduling={"priorityClassName": f"of-{namespace}"})
    async with connected(api) as cluster:
        controller = Controller(cluster, FakeCoordinator())
        await look(cluster, controller, namespace)
        assert (state(api, namespace), pods(api, namespace)) == ("Starting", [])
        said = "PriorityClassMissing: Pod demo-coordinator-0 is refused for now"
        await until_said(api, controller, namespace, said)
        classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
        assert api.http.post(classes, json={"metadata": {"name": f"of-{namespace}"}, "value": 5}).is_success
        await look(cluster, controller, namespace)
    assert sorted(pod["metadata"]["name"] for pod in pods(api, namespace)) == MEMBERS


async def test_a_limit_range_that_the_default_resources_break_is_waited_for(api: ApiServer) -> None:
    namespace = new_namespace(api)
    place = f"/api/v1/namespaces/{namespace}/limitranges"
    least = {"limits": [{"type": "Container", "min": {"memory": "1Gi"}}]}
    assert api.http.post(place, json={"metadata": {"name": "least"}, "spec": least}).is_success
    apply_all(api, namespace)
    async with connected(api) as cluster:
        controller = Controller(cluster, FakeCoordinator())
        await look(cluster, controller, namespace)
        await until_said(api, controller, namespace, "LimitRangeExceeded: Pod demo-coordinator-0 is refused for now")
        assert "minimum memory usage per Container is 1Gi" in summary(api, namespace)
        assert api.http.delete(f"{place}/least").is_success
        async with asyncio.timeout(20):
            while len(pods(api, namespace)) < len(MEMBERS):
                await controller.pass_once(namespace, "demo")
                await asyncio.sleep(0.1)


async def test_a_namespace_that_is_deleted_is_named_and_then_written_about_no_more(api: ApiServer) -> None:
    """No controller of namespaces runs here, so that it is deleted for as long as the test lasts."""
    namespace = new_namespace(api)
    apply_all(api, namespace)
    async with connected(api) as cluster:
        controller = Controller(cluster, FakeCoordinator())
        await look(cluster, controller, namespace)
        assert api.http.delete(f"/api/v1/namespaces/{namespace}").is_success
        for pod in pods(api, namespace):
            place = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
            assert api.http.delete(place, params={"gracePeriodSeconds": 0}).is_success
        await until_said(api, controller, namespace, "NamespaceTerminating: Secret demo-")
        await look(cluster, controller, namespace)
        version = job(api, namespace)["metadata"]["resourceVersion"]
        await look(cluster, controller, namespace, passes=20)
        assert job(api, namespace)["metadata"]["resourceVersion"] == version
        assert pods(api, namespace) == []
        assert api.http.delete(api.path("trainingjobs", "demo", namespace=namespace)).is_success
        is_there = True
        async with asyncio.timeout(20):
            while is_there:
                is_there = await controller.pass_once(namespace, "demo") is not None
                await asyncio.sleep(0.1)


async def test_a_pod_that_no_server_takes_ends_the_job_with_the_servers_words(api: ApiServer) -> None:
    namespace = new_namespace(api)
    volumes = [{"name": "fast", "emptyDir": {}, "configMap": {"name": "c"}}]
    apply_all(api, namespace, trainers={"count": 2, "template": {"spec": {"volumes": volumes}}})
    async with connected(api) as cluster:
        await look(cluster, Controller(cluster, FakeCoordinator()), namespace)
    assert state(api, namespace) == "Failed"
    assert "may not specify more than 1 volume type" in summary(api, namespace)


async def test_a_service_of_others_holds_its_name_and_no_pod_is_created(api: ApiServer) -> None:
    namespace = new_namespace(api)
    place = f"/api/v1/namespaces/{namespace}/services"
    theirs = {"metadata": {"name": "demo"}, "spec": {"clusterIP": "None", "selector": {"app": "web"}}}
    assert api.http.post(place, json=theirs).is_success
    apply_all(api, namespace)
    async with connected(api) as cluster:
        controller = Controller(cluster, FakeCoordinator())
        await look(cluster, controller, namespace)
        assert pods(api, namespace) == []
        said = "NameTaken: Service demo belongs to no TrainingJob"
        await until_said(api, controller, namespace, said)
        assert api.http.delete(f"{place}/demo").is_success
        await look(cluster, controller, namespace)
    assert len(pods(api, namespace)) == 4


WRONG: list[tuple[Manifest, str]] = [
    ({"spec": {"nodeSelectr": {"a": "b"}}}, "spec.nodeSelectr"),
    ({"spec": {"containers": [{"nme": "no"}]}}, "spec.containers[0].nme"),
    ({"spec": {"containers": "no"}}, "spec.containers"),
    ({"spec": {"tolerations": {"key": "gpu"}}}, "spec.tolerations"),
    ({"spec": {"hostname": "mine"}}, "spec.hostname"),
    ({"spec": {"containers": [{"name": "t", "resources": {"limits": {"memory": "12Gx"}}}]}}, "12Gx"),
    ({"metadata": {"labels": {"a": "not a label"}}}, "metadata.labels"),
]


@pytest.mark.parametrize(("template", "path"), WRONG)
@pytest.mark.parametrize("field", ["trainers", "data"])
def test_the_server_refuses_a_wrong_template_with_its_path(
    api: ApiServer, field: str, template: Any, path: str
) -> None:
    manifest = sample("TrainingJob", {f"spec.{field}.template": template})
    answer = api.http.post(
        api.path("trainingjobs"), json=manifest, params={"dryRun": "All", "fieldValidation": "Strict"}
    )
    assert answer.status_code in (400, 422), answer.text
    assert path in answer.json()["message"] and f"spec.{field}.template" in answer.json()["message"]


async def test_a_stored_job_of_the_former_shape_runs_with_its_template(api: ApiServer) -> None:
    namespace = new_namespace(api)
    former = {"nodeSelector": {"gpu": "h100"}, "resources": {"limits": {"cpu": "8"}}}
    apply_all(api, namespace, trainers={"count": 2, "template": former})
    async with connected(api) as cluster:
        await look(cluster, Controller(cluster, FakeCoordinator()), namespace)
    trainer = next(p for p in pods(api, namespace) if p["metadata"]["name"] == "demo-trainer-0-0")
    assert trainer["spec"]["nodeSelector"] == former["nodeSelector"]
    assert next(c for c in trainer["spec"]["containers"] if c["name"] == "trainer")["resources"]["limits"] == {
        "cpu": "8"
    }


async def test_pods_are_made_with_all_that_a_template_says(api: ApiServer) -> None:
    namespace = new_namespace(api)
    shipper = {"name": "shipper", "image": "fluent:1", "resources": {"limits": {"memory": "64Mi"}}}
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {"nodeSelector": {"gpu": "h100"}, "containers": [shipper]},
    }
    apply_all(api, namespace, trainers={"count": 2, "template": template})
    async with connected(api) as cluster:
        await look(cluster, Controller(cluster, FakeCoordinator()), namespace)
    pod = next(p for p in pods(api, namespace) if p["metadata"]["name"] == "demo-trainer-0-0")
    assert pod["metadata"]["labels"].items() >= {("team", "a"), ("coxswain.dev/role", "trainer")}
    assert pod["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
    assert [c["name"] for c in pod["spec"]["containers"]] == ["trainer", "shipper"]
