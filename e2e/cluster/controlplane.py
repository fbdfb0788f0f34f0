"""A Kubernetes control plane in a folder: etcd and kube-apiserver, and what else one asks for; up
in seconds, no root needed.

    with ControlPlane(folder, servers=(CONTROLLER_MANAGER, SCHEDULER)) as plane:
        plane.http.get("/api/v1/nodes"); subprocess.run([..., "--kubeconfig", plane.kubeconfig])

It runs on a loopback address of its own; a `Place` puts it elsewhere (the cluster with real nodes
does).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Protocol

import httpx

from e2e.cluster.access import Users, write_kubeconfig, write_signing_key
from e2e.cluster.process import Argument, Child, ReservedPort, accepts, binary, own_address

SERVICE_RANGE = "10.96.0.0/16"
CONTROLLER_MANAGER, SCHEDULER = "kube-controller-manager", "kube-scheduler"
_CONTROLLER_USERS = {
    # With the range of each bootstrap role; garbage collection and namespaces need all of every
    # kind.
    "system:kube-controller-manager": "system:masters",
    "system:kube-scheduler": "",
}


class Place(Protocol):
    """Where servers run: an address, the ports on it, and a way to start a process there."""

    address: str

    def port(self, server: str) -> int: ...

    def start(self, server: str, command: Sequence[Argument], log: Path) -> Child: ...


class Loopback:
    """The machine itself, on a loopback address of this process's own; its children end with it."""

    def __init__(self) -> None:
        self.address = own_address()
        self._ports: list[ReservedPort] = []

    def port(self, server: str) -> int:
        self._ports.append(ReservedPort(self.address))
        return self._ports[-1].number

    def start(self, server: str, command: Sequence[Argument], log: Path) -> Child:
        return Child(command, log)


class ControlPlane:
    """`servers` run beside etcd and the API server.

    `flags`: further ones by server's name, they win over ours.

    `users`: further users of the API server and their groups; `kubeconfig_of(user)` is theirs,
    `kubeconfig` admin's.
    """

    def __init__(
        self,
        folder: Path,
        *,
        servers: Sequence[str] = (CONTROLLER_MANAGER, SCHEDULER),
        flags: Mapping[str, Sequence[Argument]] | None = None,
        users: Mapping[str, str] | None = None,
        place: Place | None = None,
    ) -> None:
        self.folder = folder
        self._servers, self._flags = tuple(servers), dict(flags or {})
        self._users = Users({**_CONTROLLER_USERS, **(users or {})})
        self._place = place or Loopback()
        self._children: dict[str, Child] = {}
        self.address = self._place.address
        self._ports = {name: self._place.port(name) for name in ("etcd", "etcd-peer", "kube-apiserver")}
        self.url = f"https://{self.address}:{self._ports['kube-apiserver']}"
        self.token = self._users.tokens["admin"]
        self.authority = folder / "certificates" / "apiserver.crt"

    def __enter__(self) -> ControlPlane:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Up when the API server is ready; the further servers then find their own way."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._users.write(self.folder / "tokens.csv")
        write_signing_key(self.folder / "service-accounts.pem")
        self.start_etcd()
        self.start_apiserver()
        for server in self._servers:
            self.start_server(server)

    def stop(self) -> None:
        """Kills what runs; the folder stays."""
        if "http" in vars(self):
            self.http.close()
        for child in reversed(self._children.values()):
            child.stop()

    def stop_server(self, server: str) -> None:
        """Kills one, for tests of what happens without it; start_apiserver, start_server brings it
        back.
        """
        self._children.pop(server).stop()

    def pid(self, server: str) -> int:
        return self._children[server].process.pid

    def start_etcd(self) -> None:
        """etcd need not outlive a power cut here, so it does not wait for the disk."""
        peer = f"http://{self.address}:{self._ports['etcd-peer']}"
        child = self._start("etcd", [
            "--data-dir", self.folder / "etcd", "--unsafe-no-fsync", "--log-level", "error",
            "--listen-client-urls", self._etcd, "--advertise-client-urls", self._etcd,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        ])  # fmt: skip
        child.wait_until(lambda: accepts(self.address, self._ports["etcd"]))

    def start_apiserver(self) -> None:
        child = self._start("kube-apiserver", self._apiserver_arguments())
        child.wait_until(lambda: accepts(self.address, self._ports["kube-apiserver"]) and self.authority.exists())
        self.kubeconfig = self.kubeconfig_of("admin")
        self.until_ready()

    def until_ready(self) -> None:
        """Returns when the API server is ready; also after a restart of etcd."""
        self._children["kube-apiserver"].wait_until(self._ready)

    def _ready(self) -> bool:
        try:
            return self.http.get("/readyz").status_code == 200
        except httpx.TransportError:  # a connection that the killed one had was tried
            return False

    @cached_property
    def http(self) -> httpx.Client:
        """Admin's client.

        It survives restarts of the API server, which keeps its port and certificate.
        """
        headers = {"Authorization": f"Bearer {self.token}"}
        trust = ssl.create_default_context(cafile=str(self.authority))
        return httpx.Client(base_url=self.url, verify=trust, headers=headers, timeout=30, trust_env=False)

    def start_server(self, server: str, *further: Argument) -> None:
        """The controller-manager or the scheduler, one of each, without an election and without
        ports.
        """
        config = self.kubeconfig_of(f"system:{server}")
        arguments: list[Argument] = ["--kubeconfig", config, "--leader-elect=false", "--secure-port=0"]
        if server == CONTROLLER_MANAGER:
            arguments += ["--service-account-private-key-file", self._signing_key, "--root-ca-file", self.authority]
        self._start(server, [*arguments, *further])

    def kubeconfig_of(self, user: str) -> Path:
        path = self.folder / ("kubeconfig" if user == "admin" else f"kubeconfig.{user.replace(':', '-')}")
        return write_kubeconfig(path, self.url, self.authority, self._users.tokens[user])

    def kubeconfig_with(self, token: str, name: str) -> Path:
        """For the bearer of `token`, such as one that the API server issued for a service account."""
        return write_kubeconfig(self.folder / f"kubeconfig.{name}", self.url, self.authority, token)

    @property
    def _etcd(self) -> str:
        return f"http://{self.address}:{self._ports['etcd']}"

    @property
    def _signing_key(self) -> Path:
        return self.folder / "service-accounts.pem"

    def _apiserver_arguments(self) -> list[Argument]:
        arguments: list[Argument] = [
            "--etcd-servers", self._etcd, "--bind-address", self.address, "--advertise-address", self.address,
            "--secure-port", str(self._ports["kube-apiserver"]), "--cert-dir", self.authority.parent,
            "--token-auth-file", self.folder / "tokens.csv", "--authorization-mode", "Node,RBAC", "--allow-privileged",
            "--service-cluster-ip-range", SERVICE_RANGE, "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-key-file", self._signing_key, "--service-account-signing-key-file", self._signing_key,
        ]  # fmt: skip
        if CONTROLLER_MANAGER not in self._servers:
            # No controller makes default service accounts here, which this admission plugin
            # requires.
            arguments += ["--disable-admission-plugins", "ServiceAccount"]
        if self.address.startswith("127."):
            # Lets such an address be advertised.
            arguments += ["--endpoint-reconciler-type", "none"]
        return arguments

    def _start(self, server: str, arguments: Sequence[Argument]) -> Child:
        command = [binary(server), *arguments, *self._flags.get(server, ())]
        child = self._place.start(server, command, self.folder / f"{server}.log")
        self._children[server] = child
        return child
