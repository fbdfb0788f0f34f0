"""The operator as a process, and a coordinator that it can reach: shared by the tests of whole lifecycles."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coxswain.names import PORT_COORDINATOR
from tests.children import Child
from tests.fake_coordinator import FakeCoordinator
from tests.integration.apiserver import ApiServer
from tests.integration.lifecycle import Performance, Stage
from tests.integration.operator_parts import MERGE

QUICK = ("--retry-seconds", "0.2")  # to see a Lease that was let go


def operator(kubeconfig: Path, log: Path, *options: str) -> Child:
    """Starts `python -m coxswain_operator`."""
    command: list[str | Path] = [
        sys.executable, "-m", "coxswain_operator", "--kubeconfig", kubeconfig, "--host", "127.0.0.1", "--port", "0",
    ]  # fmt: skip
    return Child([*command, *options], log)


def health_address(child: Child) -> str:
    """Where an operator says that it serves its health and metrics. Waits for it."""
    child.wait_until(lambda: "health on " in child.log.read_text())
    return child.log.read_text().split("health on ")[1].split()[0]


def holder(api: ApiServer, namespace: str) -> str:
    """The Lease's holder; empty: there is none."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/coxswain-operator"
    return str(api.http.get(path).json().get("spec", {}).get("holderIdentity") or "")


def let_go(api: ApiServer, namespace: str) -> None:
    """The Lease of a leader that was killed, as if its time were over."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/coxswain-operator"
    assert api.http.patch(path, json={"spec": {"holderIdentity": ""}}, headers=MERGE).is_success


@contextmanager
def listening(address: str) -> Iterator[FakeCoordinator]:
    """A coordinator at the port that the operator knows. Its calls are answered 503 while it has no report."""
    coordinator = FakeCoordinator()
    coordinator.host, coordinator.port = address, PORT_COORDINATOR
    with coordinator:
        yield coordinator


def play(stage: Stage, meddle: Callable[[str], None] = lambda chapter: None, deadline: float = 60.0) -> None:
    """The whole life; `meddle` hears the name of every chapter that has just begun. Raises when one takes too long."""
    performance = Performance(stage, deadline, meddle)
    while performance.goes_on():
        time.sleep(0.1)
