"""A real API server for tests: etcd and kube-apiserver on an address of their own, in a temporary folder, up in seconds.

    with ApiServer() as api:
        api.install(crds())
        api.http.post(api.path("trainingjobs"), json={...})

There is no controller-manager, scheduler or kubelet: nothing answers but the API. `kubeconfig` serves other clients.
"""

from __future__ import annotations

import base64
import secrets
import ssl
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import yaml

from coxswain.names import GROUP, VERSION
from tests.children import Child, accepts, binary, free_port, own_address

Manifest = dict[str, Any]


class ApiServer:
    """One control plane, up within the `with` block; nothing is left behind it."""

    def __enter__(self) -> ApiServer:
        self._folder = tempfile.TemporaryDirectory(prefix="coxswain-api-")
        self._root = Path(self._folder.name)
        self._children: list[Child] = []
        self.token = secrets.token_urlsafe(24)
        self._address = own_address()
        try:
            self._start_apiserver(self._start_etcd())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if hasattr(self, "http"):
            self.http.close()
        for child in reversed(self._children):
            child.stop()
        self._folder.cleanup()

    def _start_etcd(self) -> str:
        """etcd's address. It need not outlive a power cut, so it does not wait for the disk."""
        port = free_port(self._address)
        client, peer = f"http://{self._address}:{port}", f"http://{self._address}:{free_port(self._address)}"
        command: list[str | Path] = [
            binary("etcd"), "--data-dir", self._root / "etcd", "--unsafe-no-fsync", "--log-level", "error",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        ]  # fmt: skip
        child = self._start("etcd", command)
        child.wait_until(lambda: accepts(self._address, port))
        return client

    def _start_apiserver(self, etcd: str) -> None:
        port = free_port(self._address)
        self.url = f"https://{self._address}:{port}"
        certificates = self._root / "certificates"
        self.ca = certificates / "apiserver.crt"
        child = self._start("kube-apiserver", self._apiserver_command(etcd, port, certificates))
        child.wait_until(lambda: accepts(self._address, port) and self.ca.exists())
        headers = {"Authorization": f"Bearer {self.token}"}
        trust = ssl.create_default_context(cafile=str(self.ca))
        self.http = httpx.Client(base_url=self.url, verify=trust, headers=headers, timeout=30, trust_env=False)
        child.wait_until(lambda: self.http.get("/readyz").status_code == 200)
        self._write_kubeconfig()

    def _apiserver_command(self, etcd: str, port: int, certificates: Path) -> list[str | Path]:
        tokens, key = self._root / "tokens.csv", self._root / "service-accounts.pem"
        tokens.write_text(f'{self.token},admin,admin,"system:masters"\n')
        key.write_text(_elliptic_key())
        return [
            binary("kube-apiserver"), "--etcd-servers", etcd, "--bind-address", self._address, "--secure-port", str(port),
            "--advertise-address", self._address, "--cert-dir", certificates, "--token-auth-file", tokens,
            "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.96.0.0/16",
            "--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", key,
            "--service-account-signing-key-file", key,
            # Without a controller-manager no namespace has a default service account, which this one insists on.
            "--disable-admission-plugins", "ServiceAccount",
            # Lets an address of 127.0.0.0/8 be advertised.
            "--endpoint-reconciler-type", "none",
        ]  # fmt: skip

    def _start(self, name: str, command: list[str | Path]) -> Child:
        child = Child(command, self._root / f"{name}.log")
        self._children.append(child)
        return child

    def _write_kubeconfig(self) -> None:
        authority = base64.b64encode(self.ca.read_bytes()).decode()
        cluster = {"server": self.url, "certificate-authority-data": authority}
        self.kubeconfig = self._root / "kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(content))

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


def _elliptic_key() -> str:
    """A fresh P-256 private key (RFC 5915, without the public part, which its reader computes)."""
    der = (
        bytes.fromhex("30310201010420") + b"\x01" + secrets.token_bytes(31) + bytes.fromhex("a00a06082a8648ce3d030107")
    )
    return f"-----BEGIN EC PRIVATE KEY-----\n{base64.b64encode(der).decode()}\n-----END EC PRIVATE KEY-----\n"
