"""`python -m coxswain_operator` as a process: reconciles, takes over, gives up, and reports its health."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.children import Child
from tests.integration import processes
from tests.integration.apiserver import ApiServer
from tests.integration.operator_parts import MERGE, Kubelet, apply_all, new_namespace
from tests.integration.processes import QUICK, holder

# A leader that a busy machine holds up for longer than it may take to renew exits.
FAST = ("--lease-seconds", "8", "--renew-seconds", "7", "--retry-seconds", "0.2")
Start = Callable[..., Child]


@pytest.fixture
def start(api: ApiServer, tmp_path: Path) -> Iterator[Start]:
    """Starts operators of one namespace, in which the Lease is as well."""
    children: list[Child] = []

    def one(namespace: str, *options: str) -> Child:
        within = ("--namespace", namespace, "--operator-namespace", namespace)
        child = processes.operator(api.kubeconfig, tmp_path / f"operator-{len(children)}.log", *within, *options)
        children.append(child)
        return child

    yield one
    for child in children:
        child.stop()


def lease(api: ApiServer, namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/coxswain-operator"


def test_an_applied_job_gets_its_pods_and_the_process_says_that_it_is_well(api: ApiServer, start: Start) -> None:
    namespace = new_namespace(api)
    operator, kubelet = start(namespace), Kubelet(api, namespace)
    operator.wait_until(lambda: bool(holder(api, namespace)))
    apply_all(api, namespace)
    operator.wait_until(lambda: len(kubelet.names()) == 4)
    address = processes.health_address(operator)
    assert httpx.get(f"http://{address}/healthz").status_code == 200
    metrics = httpx.get(f"http://{address}/metrics").text
    assert 'coxswain_reconcile_total{result="ok"}' in metrics
    assert 'coxswain_api_requests_total{method="POST",status="201"}' in metrics
    operator.process.send_signal(signal.SIGTERM)
    assert operator.process.wait(60) == 0
    assert holder(api, namespace) == ""


def test_a_leader_whose_lease_is_stolen_exits(api: ApiServer, start: Start) -> None:
    namespace = new_namespace(api)
    operator = start(namespace, *QUICK)
    operator.wait_until(lambda: bool(holder(api, namespace)))
    api.http.patch(lease(api, namespace), json={"spec": {"holderIdentity": "thief"}}, headers=MERGE)
    assert operator.process.wait(60) == 1
    assert "no longer the leader" in operator.log.read_text()


def test_after_the_leader_is_killed_the_standby_takes_over_and_creates_nothing_twice(
    api: ApiServer, start: Start
) -> None:
    namespace = new_namespace(api)
    kubelet, first = Kubelet(api, namespace), start(namespace, *FAST)
    first.wait_until(lambda: bool(holder(api, namespace)))
    leading, second = holder(api, namespace), start(namespace, *FAST)
    second.wait_until(lambda: "health on" in second.log.read_text())
    apply_all(api, namespace)
    first.wait_until(lambda: len(kubelet.names()) >= 2)
    first.process.kill()
    second.wait_until(lambda: holder(api, namespace) not in ("", leading))
    second.wait_until(lambda: len(kubelet.names()) == 4)
    assert kubelet.names() == ["demo-coordinator-0", "demo-loader-0-0", "demo-trainer-0-0", "demo-trainer-1-0"]
