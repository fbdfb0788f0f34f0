"""A control plane and real nodes on this machine.

    with Cluster(folder, nodes=2) as c:
        c.load_image(archive); c.kubectl("apply", "-f", "job.yaml"); c.node(1).kill()

Everything runs in namespaces below one process, so it ends with the `with` block, and also when the
process that opened it is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType

import yaml

from e2e.cluster import dns, images, kwok, networking, settings
from e2e.cluster.access import private, write_client_certificate
from e2e.cluster.controlplane import CONTROLLER_MANAGER, ControlPlane
from e2e.cluster.namespaces import Inside, Process, commands_with, run
from e2e.cluster.node import Access, Node
from e2e.cluster.plan import Plan
from e2e.cluster.process import REPOSITORY, Argument, Child, binary, wait_until
from e2e.cluster.state import State

_END = 300  # seconds to remove images and disks of nodes, on a busy machine
_PORTS = {"etcd": 2379, "etcd-peer": 2380, "kube-apiserver": 6443}
_FLAGS: dict[str, list[str]] = {
    # Where there is no kube-proxy, Services are reached by their endpoints.
    "kube-apiserver": ["--enable-aggregator-routing=true", "--kubelet-preferred-address-types=InternalIP"],
    # A lost node shows within half a minute instead of one.
    CONTROLLER_MANAGER: ["--node-monitor-period=2s", "--node-monitor-grace-period=20s"],
}


class CannotStart(Exception):
    """The reaper's reason."""


class Inner:
    """The cluster's namespaces, as a Place for the control plane."""

    def __init__(self, plan: Plan, inside: Inside) -> None:
        self.address = plan.control_plane
        self._inside = inside

    def port(self, server: str) -> int:
        return _PORTS[server]

    def start(self, server: str, command: Sequence[Argument], log: Path) -> Child:
        return self._inside.start(command, log)


class Cluster:
    """`flags`: further flags by server (see ControlPlane). `detached`: runs until `down`.

    Without `detached` it ends with this process.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 2,
        *,
        kwok_nodes: int = 0,
        flags: Mapping[str, Sequence[str]] | None = None,
        detached: bool = False,
    ) -> None:
        self.state = State(folder.resolve())
        self._count, self._kwok_nodes, self._detached = nodes, kwok_nodes, detached
        self._flags = dict(flags or {})
        self._reaper: subprocess.Popen[str] | None = None
        self._children: list[Child] = []

    def __enter__(self) -> Cluster:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> None:
        """Returns when every node is Ready and names resolve."""
        self._start_reaper()
        self._connect_machine()
        self._start_control_plane()
        self._start_dns()
        for node in self.nodes:
            node.start()
            node.load_image(self._pause_archive)
        if self._kwok_nodes:
            self._start_kwok()
        wait_until(self._all_ready, "all nodes to be Ready", 120)

    @property
    def plan(self) -> Plan:
        plan = self.state.plan()
        if plan is None:
            raise RuntimeError(f"no cluster runs in {self.state.root}")
        return plan

    @property
    def kubeconfig(self) -> Path:
        return self.state.root / "kubeconfig"

    @property
    def machine_address(self) -> str:
        """This machine, as pods reach it: servers of a test listen here."""
        return self.plan.machine

    @property
    def inside(self) -> Inside:
        """Where the control plane runs."""
        first = Process.read(self.state.first_file)
        assert first is not None
        return Inside(first.pid)

    @property
    def nodes(self) -> list[Node]:
        return [self.node(name) for name in self.plan.nodes]

    def node(self, which: int | str) -> Node:
        """By index or by name."""
        name = which if isinstance(which, str) else self.plan.nodes[which]
        folder = self.state.control_plane
        access = Access(
            folder / f"kubeconfig.system-node-{name}",
            folder / "kubeconfig.system-kube-proxy",
            folder / "kubelet-client.crt",
        )
        return Node(name, self.plan, self.state, access, self._children)

    def kubectl(self, *arguments: Argument, stdin: str = "") -> str:
        """Returns its output; raises RuntimeError with its error output when it fails."""
        return run([binary("kubectl"), "--kubeconfig", self.kubeconfig, *arguments], stdin)

    @contextmanager
    def frozen(self, server: str) -> Iterator[None]:
        """Stops a server of the control plane within the block: it answers as one that has too much to do."""
        words = (binary(server), self.state.control_plane)
        launchers = commands_with("nsenter", *words)
        servers = [process for process in commands_with(*words) if process not in launchers]
        for process in servers:
            os.kill(process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            # nsenter stops with its child. It goes on behind it: before, it would stop again, and outlive the cluster.
            for process in (*servers, *launchers):
                if process.alive:
                    os.kill(process.pid, signal.SIGCONT)

    def load_image(self, archive: Path) -> None:
        """Into every node, so that no pod needs a registry."""
        for node in self.nodes:
            node.load_image(archive)

    def down(self) -> None:
        """Removes everything. Does nothing when nothing is there."""
        if "plane" in vars(self):
            self.plane.stop()
        for child in self._children:
            child.stop()
        self._children.clear()
        self._end_reaper()

    def _start_reaper(self) -> None:
        mode = "detached" if self._detached else "owned"
        command = [sys.executable, "-m", "e2e.cluster.reaper", str(self.state.root), str(self._count), mode]
        self._reaper = subprocess.Popen(
            command, cwd=REPOSITORY, text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL if self._detached else subprocess.PIPE,
        )  # fmt: skip
        assert self._reaper.stdout is not None
        if (answer := self._reaper.stdout.readline()) != "ready\n":
            raise CannotStart((answer + self._reaper.stdout.read()).strip())

    def _end_reaper(self) -> None:
        """Ends the reaper and waits for it; sends SIGTERM to another process's or a detached one."""
        if self._reaper is not None:
            for stream in (self._reaper.stdin, self._reaper.stdout):
                if stream is not None:
                    stream.close()
            if self._detached:
                self._reaper.terminate()
            self._reaper.wait(_END)
            self._reaper = None
        elif (other := Process.read(self.state.reaper_file)) is not None and other.alive:
            os.kill(other.pid, signal.SIGTERM)
            wait_until(lambda: not other.alive, f"the end of the cluster's reaper (process {other.pid})", _END)
        elif self.state.root.exists():
            sweep(self.state)

    def _connect_machine(self) -> None:
        pid = self.inside.pid
        run(["ip", "-batch", "-"], "\n".join(networking.machine_lines(self.plan, pid)))
        self.inside.ip(networking.cluster_lines(self.plan))
        run(["ip", "-batch", "-"], networking.machine_route(self.plan))
        self.inside.run(["sh", "-c", "mount --make-rprivate / && echo 1 > /proc/sys/net/ipv4/ip_forward"])

    @cached_property
    def plane(self) -> ControlPlane:
        folder = self.state.control_plane
        folder.mkdir()
        certificate, key = write_client_certificate(folder, "kubelet-client", "system:masters")
        mutual = ["--kubelet-client-certificate", str(certificate), "--kubelet-client-key", str(key)]
        flags = {name: [*_FLAGS.get(name, ()), *self._flags.get(name, ())] for name in {*_FLAGS, *self._flags}}
        flags["kube-apiserver"] = [*mutual, *flags["kube-apiserver"]]
        users = {f"system:node:{name}": "system:nodes" for name in self.plan.nodes}
        users |= {"system:kube-proxy": "", "coredns": "system:masters", "kwok": "system:masters"}
        return ControlPlane(folder, flags=flags, users=users, place=Inner(self.plan, self.inside))

    def _start_control_plane(self) -> None:
        self.plane.start()
        private(self.kubeconfig).write_bytes(self.plane.kubeconfig.read_bytes())
        for user in ("system:kube-proxy", "coredns", *(f"system:node:{name}" for name in self.plan.nodes)):
            self.plane.kubeconfig_of(user)

    def _start_dns(self) -> None:
        file = self.state.control_plane / "Corefile"
        file.write_text(dns.corefile(self.plan.control_plane, self.state.control_plane / "kubeconfig.coredns"))
        self._children.append(self.inside.start([binary("coredns"), "-conf", file], self.state.logs / "coredns.log"))
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(dns.manifests(self.plan.control_plane)))

    def _start_kwok(self) -> None:
        config = kwok.write_config(self.state.root / "kwok.yaml")
        command = kwok.command(self.plane.kubeconfig_of("kwok"), config, self.plan.control_plane)
        self._children.append(self.inside.start(command, self.state.logs / "kwok.log"))
        nodes = [kwok.node(f"kwok-{index}") for index in range(self._kwok_nodes)]
        self.kubectl("create", "-f", "-", stdin=yaml.safe_dump_all(nodes))

    @cached_property
    def _pause_archive(self) -> Path:
        return images.write_pause_archive(binary("pause"), settings.PAUSE_IMAGE, self.state.root / "pause.tar")

    def _all_ready(self) -> bool:
        path = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
        return self.kubectl("get", "nodes", "-o", path).split() == ["True"] * (len(self.plan.nodes) + self._kwok_nodes)


def sweep(state: State) -> None:
    """Removes what a killed cluster left, reaper included."""
    lock = state.take()
    try:
        state.remove()
    finally:
        lock.close()
