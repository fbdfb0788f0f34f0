"""A control plane whose nodes are kwok's: pods are scheduled, become Running and go, but no container starts.

    with Plane() as plane:
        await plane.add_nodes(200)

etcd (without fsync), kube-apiserver, controller-manager and scheduler (client limits of 1,000/2,000 requests/s), kwok.
Every client is a user of its own, so that the audit log names the client of each request.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import yaml

from bench.scale.processes import usage
from e2e.cluster import kwok
from e2e.cluster.controlplane import CONTROLLER_MANAGER, SCHEDULER, ControlPlane
from e2e.cluster.process import Argument, Child

Manifest = dict[str, Any]
PREFIX = "coxswain-scale-"  # of the folders
QPS, BURST = "1000", "2000"
USERS = ("kwok", "watcher", "loop", "coxswain", "jobset", "trainer", "training-operator")
# Requests that are the same for all clients, or the bench's own: they would only make the log long.
QUIET = ("kwok", f"system:{SCHEDULER}", "watcher", "admin", "system:apiserver")


class Plane:
    """Up within the `with` block; nothing is left behind it."""

    def __enter__(self) -> Plane:
        _remove_leftovers(Path(tempfile.gettempdir()))
        self._folder = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-")
        self.root = Path(self._folder.name)
        self._children: list[Child] = []
        users = dict.fromkeys(USERS, "system:masters")  # whom the server's own fairness does not slow down
        self.control = ControlPlane(self.root, flags=self._flags(), users=users)
        try:
            self.control.start()
            self._start_kwok()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in reversed(self._children):
            child.stop()
        self.control.stop()
        self._folder.cleanup()

    @property
    def audit_log(self) -> Path:
        return self.root / "audit.log"

    def cpu(self) -> dict[str, float]:
        """Seconds that each server has used so far."""
        pids = {name: self.control.pid(name) for name in ("etcd", "kube-apiserver", CONTROLLER_MANAGER, SCHEDULER)}
        return {name: usage(pid).cpu for name, pid in {**pids, "kwok": self._kwok.process.pid}.items()}

    def run(self, name: str, command: Sequence[Argument], env: dict[str, str] | None = None) -> Child:
        """A process that ends with the control plane, with its output in `<name>.log`."""
        child = Child(command, self.root / f"{name}.log", env)
        self._children.append(child)
        return child

    def session(self, user: str, connections: int = 8) -> aiohttp.ClientSession:
        """Use as `async with`."""
        kubeconfig = yaml.safe_load(self.control.kubeconfig_of(user).read_text())
        token = kubeconfig["users"][0]["user"]["token"]
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        trust = ssl.create_default_context(cafile=str(self.control.authority))
        connector = aiohttp.TCPConnector(ssl=trust, limit=connections)
        return aiohttp.ClientSession(base_url=self.control.url, headers=headers, connector=connector)

    async def add_nodes(self, count: int, pods_each: int = 32) -> None:
        """Returns once all are ready."""
        async with self.session("admin") as http:
            for n in range(count):
                async with http.post("/api/v1/nodes", json=kwok.node(f"node-{n}", pods_each, taints=())) as answer:
                    answer.raise_for_status()
            async with asyncio.timeout(60):
                while not await _all_ready(http, count):  # noqa: ASYNC110 - a poll
                    await asyncio.sleep(0.1)

    def _flags(self) -> dict[str, list[Argument]]:
        policy, scheduler = self.root / "audit.yaml", self.root / "scheduler.yaml"
        policy.write_text(yaml.safe_dump(_audit_policy()))
        scheduler.write_text(yaml.safe_dump(_scheduler_config(self.root / f"kubeconfig.system-{SCHEDULER}")))
        return {
            "kube-apiserver": [
                "--audit-policy-file", policy, "--audit-log-path", self.audit_log, "--audit-log-mode", "batch",
                "--audit-log-batch-max-wait", "1s",
                # It taints new nodes, and the node lifecycle controller, which would relieve them, does not run.
                "--disable-admission-plugins", "TaintNodesByCondition",
            ],
            CONTROLLER_MANAGER: [
                "--controllers", "*,-node-lifecycle-controller", "--kube-api-qps", QPS, "--kube-api-burst", BURST,
            ],
            SCHEDULER: ["--config", scheduler],
        }  # fmt: skip

    def _start_kwok(self) -> None:
        user, config = self.control.kubeconfig_of("kwok"), kwok.write_config(self.root / "kwok.yaml")
        leases = ("--node-lease-duration-seconds", "0")  # none: a Lease a node is renewed for ever
        self._kwok = self.run("kwok", [*kwok.command(user, config, self.control.address), *leases])


def _remove_leftovers(folder: Path) -> None:
    """Of planes whose owners were killed: their processes ended with them, their files did not."""
    for left in folder.glob(f"{PREFIX}*-*"):
        owner = left.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(left, ignore_errors=True)


def _audit_policy() -> Manifest:
    leases = {"group": "coordination.k8s.io", "resources": ["leases"]}  # go on for ever
    rules: list[Manifest] = [
        {"level": "None", "users": list(QUIET)},
        {"level": "None", "resources": [leases]},
        {"level": "Metadata"},
    ]
    return {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}


def _scheduler_config(kubeconfig: Path) -> Manifest:
    connection = {"kubeconfig": str(kubeconfig), "qps": int(QPS), "burst": int(BURST)}
    head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    return {**head, "clientConnection": connection, "leaderElection": {"leaderElect": False}}


async def _all_ready(http: aiohttp.ClientSession, count: int) -> bool:
    async with http.get("/api/v1/nodes") as answer:
        nodes = (await answer.json())["items"]
    conditions = [c for node in nodes for c in node["status"].get("conditions", [])]
    return [(c["type"], c["status"]) for c in conditions].count(("Ready", "True")) == count
