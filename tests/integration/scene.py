"""A job of a real API server that trains, for tests of `cox` in a cluster, with its store and its users."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from coxswain.wire import JobReport
from coxswain_cli.__main__ import app
from coxswain_operator.controller import Controller
from tests.charts import of_kind, render
from tests.fake_coordinator import FakeCoordinator
from tests.integration.apiserver import ApiServer
from tests.integration.fake_kubelet import FakeKubelet
from tests.integration.operator_parts import Kubelet, apply_all, connected, new_namespace
from tests.s3server import S3Server
from tests.unit.fake_cluster import report
from tests.unit.test_readers_location import train

LOGS = {
    ("demo-coordinator-0", "coordinator"): ["the coordinator's line"],
    ("demo-loader-0-0", "loader"): ["the loader's line"],
    ("demo-trainer-0-0", "constructor"): ["the constructor's line"],
    ("demo-trainer-0-0", "trainer"): ["first", "second"],
    ("demo-trainer-1-0", "constructor"): [],
    ("demo-trainer-1-0", "trainer"): ["of the other trainer"],
}


@dataclass
class Scene:
    """A job that trains, its store, and two users: one with the rights of `view`, one without any."""

    api: ApiServer
    namespace: str
    kubelet: FakeKubelet
    viewer: Path
    stranger: Path
    steps: list[dict[str, Any]]

    def cox(self, command: str, *arguments: object, access: Path | None = None) -> tuple[int, str]:
        place = ("--kubeconfig", access or self.viewer, "--namespace", self.namespace)
        return cox(command, *arguments, *place)


def cox(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.output


async def operate(api: ApiServer, namespace: str, kubelet: FakeKubelet) -> None:
    """An operator and its pods, until the status says what the coordinator reports."""
    coordinator, pods = FakeCoordinator(), Kubelet(api, namespace)
    coordinator.job_report = running()
    async with connected(api) as cluster:
        controller = Controller(cluster, coordinator)
        for _ in range(4):
            await controller.pass_once(namespace, "demo")
            for pod in pods.pods():
                if not pod["spec"].get("nodeName"):
                    kubelet.bind(namespace, pod["metadata"]["name"])
            pods.run_all()
    kubelet.logs |= LOGS


def running() -> JobReport:
    return report(phase="Running", step=12, steps=100, loss=4.5678, tokens_per_second=19_918.0)


def user(api: ApiServer, namespace: str, folder: Path, name: str) -> Path:
    """A service account; the viewer gets what the chart and Kubernetes put into `view`."""
    core = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    assert api.http.post(core, json={"metadata": {"name": name}}).is_success
    if name == "viewer":
        for role in ("system:aggregate-to-view", charts_viewer(api)):
            bind(api, namespace, name, role)
    token = api.http.post(f"{core}/{name}/token", json={"spec": {}}).json()["status"]["token"]
    return api.access_for(folder / name, token)


def charts_viewer(api: ApiServer) -> str:
    """The chart's own ClusterRole, which `view` aggregates."""
    label = "rbac.authorization.k8s.io/aggregate-to-view"
    (role,) = [r for r in of_kind(render(), "ClusterRole") if label in r["metadata"].get("labels", {})]
    answer = api.http.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", json=role)
    assert answer.is_success or answer.status_code == 409, answer.text
    return str(role["metadata"]["name"])


def bind(api: ApiServer, namespace: str, account: str, role: str, kind: str = "ClusterRole") -> None:
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"generateName": "t-"},
        "roleRef": {"apiGroup": group, "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    answer = api.http.post(f"/apis/{group}/v1/namespaces/{namespace}/rolebindings", json=binding)
    assert answer.is_success, answer.text


@contextmanager
def staged(api: ApiServer, s3: S3Server, folder: Path) -> Iterator[Scene]:
    asyncio.run(train(folder))
    for path in sorted(p for p in (folder / "store").rglob("*") if p.is_file()):
        key = f"demo/{path.relative_to(folder / 'store')}"
        s3.client().put_object(Bucket="runs", Key=key, Body=path.read_bytes())
    namespace = new_namespace(api)
    endpoint = {"url": s3.endpoint_url, "region": s3.region, "secretRef": {"name": "of-the-job"}}
    apply_all(api, namespace, checkpoint={"uri": "s3://runs/demo", "endpoint": endpoint})
    with FakeKubelet(api, f"node-{namespace}") as kubelet:
        asyncio.run(operate(api, namespace, kubelet))
        steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
        yield Scene(
            api, namespace, kubelet, user(api, namespace, folder, "viewer"), user(api, namespace, folder, "stranger"),
            steps,
        )  # fmt: skip
