"""A real API server for tests: etcd and kube-apiserver on an address of their own, in a temporary folder, up in seconds.

    with ApiServer() as api:
        api.install(crds())
        api.http.post(api.path("trainingjobs"), json={...})

There is no scheduler and no kubelet, and a controller-manager only where a test asks for it: nothing answers but the API.
`kubeconfig` serves other clients; `kill` and `revive` are what a crash and a restart of a server are.
"""

from __future__ import annotations

import secrets
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from coxswain.names import GROUP, VERSION
from tests.children import Child, accepts, free_port, own_address
from tests.integration import components

Manifest = dict[str, Any]


class ApiServer:
    """One control plane, up within the `with` block; nothing is left behind it."""

    def __enter__(self) -> ApiServer:
        self._folder = tempfile.TemporaryDirectory(prefix="coxswain-api-")
        self._root = Path(self._folder.name)
        self._children: dict[str, Child] = {}
        self.token = secrets.token_urlsafe(24)
        self.address = own_address()
        self._etcd, self._port = free_port(self.address), free_port(self.address)
        self.url = f"https://{self.address}:{self._port}"
        self.ca = self._root / "certificates" / "apiserver.crt"
        self.audit = self._root / "audit.log"
        try:
            self._start_all()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if hasattr(self, "http"):
            self.http.close()
        for child in reversed(self._children.values()):
            child.stop()
        self._folder.cleanup()

    def _start_all(self) -> None:
        command = components.etcd(self._root, self.address, self._etcd, free_port(self.address))
        etcd = self._start("etcd", command)
        etcd.wait_until(lambda: accepts(self.address, self._etcd))
        server = self._start("kube-apiserver", self._apiserver_command())
        server.wait_until(lambda: accepts(self.address, self._port) and self.ca.exists())
        headers = {"Authorization": f"Bearer {self.token}"}
        trust = ssl.create_default_context(cafile=str(self.ca))
        self.http = httpx.Client(base_url=self.url, verify=trust, headers=headers, timeout=30, trust_env=False)
        server.wait_until(self._ready)
        self.kubeconfig = components.kubeconfig(self._root / "kubeconfig", self.url, self.ca, self.token)

    def _apiserver_command(self) -> components.Command:
        return components.apiserver(self._root, self.address, self._port, self._etcd, self.token)

    def _start(self, name: str, command: components.Command) -> Child:
        self._children[name] = Child(command, self._root / f"{name}.log")
        return self._children[name]

    def _ready(self) -> bool:
        try:
            return self.http.get("/readyz").status_code == 200
        except httpx.TransportError:  # it has not opened its port yet, or a connection of the killed one was tried
            return False

    def kill(self, name: str) -> None:
        """SIGKILL to `etcd` or `kube-apiserver`."""
        self._children[name].stop()

    def revive(self, name: str) -> None:
        """Starts a killed server again, with its data and on its address; returns when the API answers."""
        self._start(name, list(self._children[name].process.args)).wait_until(self._ready)

    @contextmanager
    def controllers(self, names: str) -> Iterator[None]:
        """With a controller-manager that runs the named controllers."""
        child = self._start("kube-controller-manager", components.controllers(self.kubeconfig, names))
        try:
            yield
        finally:
            child.stop()

    def access_for(self, path: Path, token: str = "", url: str = "") -> Path:
        """A kubeconfig at `path` for another user, or by another way to the server."""
        return components.kubeconfig(path, url or self.url, self.ca, token or self.token)

    def install(self, crds: list[Manifest], deadline: float = 30.0) -> None:
        """Creates the CRDs and waits until each is served. Raises with the server's words when it refuses one."""
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
        parts = [f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{plural}", name, subresource]
        return "/".join(part for part in parts if part)
