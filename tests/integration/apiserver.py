"""A real API server for tests: etcd and kube-apiserver on an address of their own, in a temporary
folder, up in seconds.

    with ApiServer() as api:
        api.install(crds())
        api.http.post(api.path("trainingjobs"), json={...})

There is no scheduler and no kubelet, and a controller-manager only where a test asks for it: only
the API answers. `kubeconfig` serves other clients; `kill` and `revive` are what a crash and a
restart of a server are.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import yaml

from coxswain.api.kinds import KINDS
from coxswain.names import GROUP, VERSION
from e2e.cluster.access import write_kubeconfig
from e2e.cluster.controlplane import CONTROLLER_MANAGER, ControlPlane, Loopback
from e2e.cluster.process import Argument, Child

Manifest = dict[str, Any]
# One line for every request that is not a component's own: its user, its object and the answer.
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "users": ["system:apiserver"]},
        {"level": "None", "nonResourceURLs": ["/readyz"]},
        {"level": "Metadata"},
    ],
}


class RoomyLoopback(Loopback):
    """Servers that collect garbage less often: a fifth of their time, for some 300 MiB."""

    def start(self, server: str, command: Sequence[Argument], log: Path) -> Child:
        return Child(command, log, {**os.environ, "GOGC": "400"})


class ApiServer:
    """One control plane, up within the `with` block; nothing is left behind it."""

    def __init__(self, servers: Sequence[str] = (), flags: Mapping[str, Sequence[str]] | None = None) -> None:
        """`servers` and `flags` as of ControlPlane."""
        self._servers, self._flags = servers, flags or {}

    def __enter__(self) -> ApiServer:
        self._folder = tempfile.TemporaryDirectory(prefix="coxswain-api-")
        root = Path(self._folder.name)
        self.audit, policy = root / "audit.log", root / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(_AUDIT_POLICY))
        audit = ["--audit-policy-file", policy, "--audit-log-path", self.audit]
        flags = {**self._flags, "kube-apiserver": [*audit, *self._flags.get("kube-apiserver", ())]}
        self.plane = ControlPlane(root, servers=self._servers, flags=flags, place=RoomyLoopback())
        try:
            self.plane.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.plane.stop()
        self._folder.cleanup()

    @property
    def http(self) -> httpx.Client:
        """An administrator's."""
        return self.plane.http

    @property
    def address(self) -> str:
        return self.plane.address

    @property
    def url(self) -> str:
        return self.plane.url

    @property
    def token(self) -> str:
        return self.plane.token

    @property
    def ca(self) -> Path:
        return self.plane.authority

    @property
    def kubeconfig(self) -> Path:
        return self.plane.kubeconfig

    def kill(self, name: str) -> None:
        """SIGKILL to `etcd` or `kube-apiserver`."""
        self.plane.stop_server(name)

    def revive(self, name: str) -> None:
        """Starts a killed server again, with its data and on its address; returns when the API
        answers.
        """
        if name == "etcd":
            self.plane.start_etcd()
            self.plane.until_ready()
        else:
            self.plane.start_apiserver()

    @contextmanager
    def controllers(self, names: str) -> Iterator[None]:
        """With a controller-manager that runs only the named controllers: others would make objects
        that no test asked for.
        """
        self.plane.start_server(CONTROLLER_MANAGER, "--controllers", names)
        try:
            yield
        finally:
            self.plane.stop_server(CONTROLLER_MANAGER)

    def access_for(self, path: Path, token: str = "", url: str = "") -> Path:
        """A kubeconfig at `path` for another user, or by another way to the server."""
        return write_kubeconfig(path, url or self.url, self.ca, token or self.token)

    def install(self, crds: list[Manifest], deadline: float = 30.0) -> None:
        """Creates the CRDs and waits until each is served.

        Raises with the server's words when it refuses one.
        """
        for crd in crds:
            answer = self.http.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json=crd)
            if answer.is_error:
                raise RuntimeError(f"{crd['metadata']['name']}: {answer.text}")
        end = time.monotonic() + deadline
        for crd in crds:
            while self.http.get(self.path(crd["spec"]["names"]["plural"])).status_code != 200:
                if time.monotonic() > end:
                    raise RuntimeError(f"{crd['metadata']['name']} is not served after {deadline} s")
                time.sleep(0.02)

    def path(self, plural: str, name: str = "", subresource: str = "", namespace: str = "default") -> str:
        """Path of our kinds: the collection, an object, or a subresource."""
        namespaced = next(kind.namespaced for kind in KINDS if kind.plural == plural)
        within = f"namespaces/{namespace}" if namespaced else ""
        parts = [f"/apis/{GROUP}/{VERSION}", within, plural, name, subresource]
        return "/".join(part for part in parts if part)
