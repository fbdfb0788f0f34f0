"""`python -m coxswain_operator` as a process: reconciles, takes over, gives up, and reports its health."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from coxswain_operator.reconcile.times import stamp
from tests.children import Child
from tests.integration import processes
from tests.integration.apiserver import ApiServer
from tests.integration.audit import created
from tests.integration.fault_proxy import Call, Fault, FaultProxy, Refuse
from tests.integration.operator_parts import MERGE, Kubelet, apply_all, new_namespace
from tests.integration.processes import QUICK, holder

# A leader that a busy machine holds up for longer than it may take to renew exits.
FAST = ("--lease-seconds", "8", "--renew-seconds", "7", "--retry-seconds", "0.2")
NOW = stamp(time.time())
SHORT = ("--lease-seconds", "6", "--renew-seconds", "5", "--retry-seconds", "0.2")
Start = Callable[..., Child]


@pytest.fixture
def start(api: ApiServer, tmp_path: Path) -> Iterator[Start]:
    """Starts operators of one namespace, in which the Lease is as well."""
    children: list[Child] = []

    def one(namespace: str, *options: str, kubeconfig: Path = api.kubeconfig) -> Child:
        within = ("--namespace", namespace, "--operator-namespace", namespace)
        child = processes.operator(kubeconfig, tmp_path / f"operator-{len(children)}.log", *within, *options)
        children.append(child)
        return child

    yield one
    for child in children:
        child.stop()


def lease(api: ApiServer, namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/coxswain-operator"


def hold_lease(api: ApiServer, namespace: str, identity: str) -> None:
    head, spec = {"name": "coxswain-operator"}, {"holderIdentity": identity, "leaseDurationSeconds": 60}
    answer = api.http.post(lease(api, namespace).rpartition("/")[0], json={"metadata": head, "spec": spec})
    assert answer.is_success, answer.text


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


@pytest.mark.parametrize("backend", ["None", "Auto"])
def test_an_operator_is_well_while_the_api_server_is_away_whatever_it_has_to_ask_first(
    backend: str, api: ApiServer, start: Start, tmp_path: Path
) -> None:
    """A kubelet would end it otherwise, ever more rarely, and so delay its return beyond the server's."""
    with socket.socket() as nowhere:
        nowhere.bind(("127.0.0.1", 0))  # and does not listen
        away = api.access_for(tmp_path / "away", url=f"https://127.0.0.1:{nowhere.getsockname()[1]}")
        operator = start("lab", "--gang-scheduling", backend, kubeconfig=away)
        answer = httpx.get(f"http://{processes.health_address(operator)}/healthz")
        assert (answer.status_code, answer.text.splitlines()[0]) == (200, "ok")
    operator.process.send_signal(signal.SIGTERM)
    assert operator.process.wait(60) == 0


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


async def test_an_operator_keeps_a_finished_job_for_its_time_by_the_servers_clock_whatever_its_machines_says(
    api: ApiServer, start: Start, tmp_path: Path
) -> None:
    """The operator before it, whose machine's clock was another, has written when the job ended."""
    namespace = new_namespace(api)
    apply_all(api, namespace, ttlSecondsAfterFinished=3600)
    ended = {"type": "Succeeded", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": NOW}
    status = {"status": {"conditions": [ended], "completionTime": NOW, "observedGeneration": 1}}
    job = api.path("trainingjobs", "demo", namespace=namespace)
    assert api.http.patch(f"{job}/status", json=status, headers=MERGE).is_success
    async with FaultProxy(api, tmp_path, ahead=4000) as proxy:
        operator = start(namespace, kubeconfig=proxy.kubeconfig)
        await asyncio.to_thread(operator.wait_until, lambda: api.http.get(job).status_code == 404)


class Stopped:
    """A plan: the first pod is to be asked for again after a second, in which the process is stopped. Keeps what it writes when
    it goes on."""

    def __init__(self, child: Child) -> None:
        self._child, self.is_stopped, self.late = child, asyncio.Event(), list[Call]()
        self._went_on, self._renewals = False, -1

    def __call__(self, call: Call) -> Fault | None:
        if self._went_on and call.writing:
            self.late.append(call)
        if call.method == "POST" and call.path.endswith("/pods") and self._renewals < 0:
            self._renewals = 0
            return Refuse(429, after=1)
        if "/leases/" in call.path and self._renewals >= 0:
            self._renewals += 1
            if self._renewals == 2:  # the answer has arrived
                self._child.process.send_signal(signal.SIGSTOP)
                self.is_stopped.set()
        return None

    def go_on(self) -> None:
        self._went_on = True
        self._child.process.send_signal(signal.SIGCONT)


async def test_a_leader_that_is_stopped_until_another_has_taken_over_writes_nothing_afterwards_and_ends(
    api: ApiServer, start: Start, tmp_path: Path
) -> None:
    """The write that it then wants to repeat at once must not reach the server, nor a renewal."""
    namespace = new_namespace(api)
    kubelet = Kubelet(api, namespace)
    hold_lease(api, namespace, "first")  # its own, as after a restart: the other one cannot be quicker
    async with FaultProxy(api, tmp_path) as proxy:
        first = start(namespace, *SHORT, "--identity", "first", kubeconfig=proxy.kubeconfig)
        second = start(namespace, *FAST, "--identity", "second")
        await asyncio.to_thread(second.wait_until, lambda: "health on" in second.log.read_text())
        await asyncio.to_thread(first.wait_until, lambda: "first is the leader" in first.log.read_text())
        proxy.plans[namespace] = plan = Stopped(first)
        apply_all(api, namespace)
        await asyncio.wait_for(plan.is_stopped.wait(), 60)
        await asyncio.to_thread(second.wait_until, lambda: len(kubelet.names()) == 4)
        assert holder(api, namespace) == "second"
        plan.go_on()
        assert await asyncio.to_thread(first.process.wait, 60) == 1
    assert "no longer the leader" in first.log.read_text() and holder(api, namespace) == "second"
    assert plan.late == [] and set(created(api, namespace).values()) == {1}
