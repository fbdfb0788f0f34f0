"""A node: a small machine of its own with containerd, a kubelet and kube-proxy, that one signal can
end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster import cgroups, networking, settings
from e2e.cluster.namespaces import Inside, Process, wait_for_end
from e2e.cluster.plan import Plan
from e2e.cluster.process import Child, binary
from e2e.cluster.state import State

# Folders of the machine that a node has its own of; they stay over a restart, as a disk does. /run
# does not.
_DISK = {"/var/lib": "lib", "/var/log": "log"}
MASKED = (*_DISK, "/run")
# What a kubelet would set for the whole machine; it reads that it is so already, and leaves the
# machine alone.
_TUNABLES = {
    "vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000, "kernel/keys/root_maxbytes": 25000000,
}  # fmt: skip


@dataclass(frozen=True)
class Access:
    """Files that let a node's programs and the API server trust each other."""

    kubelet_config: Path
    proxy_config: Path
    client_authority: Path


@dataclass(frozen=True)
class Node:
    name: str
    plan: Plan
    state: State
    access: Access
    children: list[Child] = field(compare=False)
    """Takes a started process, whose end the caller awaits."""

    @property
    def folder(self) -> Path:
        return self.state.node(self.name)

    @property
    def address(self) -> str:
        return self.plan.node_address(self.name)

    @property
    def first(self) -> Process | None:
        """The process whose end is the node's; None for a node that never ran."""
        return Process.read(self.state.node_file(self.name))

    @property
    def alive(self) -> bool:
        return self.first is not None and self.first.alive

    @property
    def inside(self) -> Inside:
        first = self.first
        if first is None or not first.alive:
            raise RuntimeError(f"{self.name} is not running: start() it first")
        return Inside(first.pid)

    def start(self) -> None:
        """Returns when containerd answers; the kubelet then registers the node, or takes it up
        again.
        """
        cgroups.make(self.plan.cgroup_of(self.name))
        self._write_settings()
        self._make_machine()
        self._connect()
        log = self.state.logs / f"{self.name}.containerd.log"
        before = _readied(log)
        containerd = self._start("containerd", ["containerd", "--config", self.folder / "containerd.toml"])
        containerd.wait_until(lambda: self._containerd_answers() and _readied(log) > before)
        self._start_kubelet()
        self._start("kube-proxy", [binary("kube-proxy"), "--config", self.folder / "kube-proxy.yaml"])

    def kill(self) -> None:
        """A power cut: kubelet, containerd, every pod's processes and the network end at once.

        The disk stays.
        """
        first = self.first
        if first is not None and first.alive:
            os.kill(first.pid, signal.SIGKILL)
            wait_for_end(first, self.name)

    def disconnect(self) -> None:
        """Unplugs the network: the node runs on and cannot be reached."""
        self._cluster().ip([f"link set {self.name} down"])

    def connect(self) -> None:
        self._cluster().ip([f"link set {self.name} up"])

    def load_image(self, archive: Path) -> None:
        """A docker or OCI archive, so that pods on this node need not pull it; with patience for
        images of many GB.
        """
        self.ctr("images", "import", str(archive), deadline=900)

    def ctr(self, *arguments: str, deadline: float = 120) -> str:
        return self.inside.run(["ctr", "--namespace", "k8s.io", *arguments], deadline=deadline)

    def _containerd_answers(self) -> bool:
        try:
            self.inside.run(["ctr", "version"])
        except RuntimeError:
            return False
        return True

    def _cluster(self) -> Inside:
        first = Process.read(self.state.first_file)
        assert first is not None
        return Inside(first.pid)

    def _write_settings(self) -> None:
        for name in ("networks", *_DISK.values()):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        names, networks = self.folder / "resolv.conf", self.folder / "networks"
        kubelet = settings.kubelet(self.plan, self.name, self.access.client_authority, names)
        files = {
            names: "",  # the machine's own name servers are none of a pod's business
            self.folder / "kubelet.yaml": kubelet,
            self.folder / "kube-proxy.yaml": settings.kube_proxy(self.plan, self.name, self.access.proxy_config),
            self.folder / "containerd.toml": settings.containerd(networks, settings.plugins_folder()),
            networks / "pods.conflist": json.dumps(settings.pod_network(self.plan, self.name)),
        }
        for path, content in files.items():
            path.write_text(content)

    def _make_machine(self) -> None:
        """Namespaces below the cluster's; the reaper finds them there."""
        child, first = self._cluster().make_inner(self.state.logs / f"{self.name}.log")
        self.children.append(child)
        first.write(self.state.node_file(self.name))
        self.inside.run(["sh", "-e"], stdin="\n".join(self._mounts()))

    def _mounts(self) -> list[str]:
        """Shell lines.

        A kubelet wants its mounts shared with containers; `private` first keeps them from the
        machine.
        """
        tunables = self.folder / "tunables"
        return [
            "mount --make-rprivate /",
            "mount --make-rshared /",
            "mount -t tmpfs -o mode=755 tmpfs /run",
            f"hostname {self.name}",
            *(f"mount --bind {self.folder / name} {target}" for target, name in _DISK.items()),
            f"mkdir -p {tunables}",
            *(f"echo {value} > {tunables}/{Path(key).name}" for key, value in _TUNABLES.items()),
            *(f"mount --bind {tunables}/{Path(key).name} /proc/sys/{key}" for key in _TUNABLES),
            "echo 1 > /proc/sys/net/ipv4/ip_forward",
        ]

    def _connect(self) -> None:
        self._free_link()
        self._cluster().ip(networking.joining_lines(self.plan, self.name, self.inside.pid))
        self.inside.ip(networking.node_lines(self.plan, self.name))

    def _free_link(self) -> None:
        """The kernel removes a killed machine's link when it finds the time; until then the name is taken."""
        with contextlib.suppress(RuntimeError):  # it is gone
            self._cluster().ip([f"link delete {self.name}"])

    def _start_kubelet(self) -> None:
        self._start("kubelet", [
            binary("kubelet"), "--config", self.folder / "kubelet.yaml", "--kubeconfig", self.access.kubelet_config,
            "--hostname-override", self.name, "--node-ip", self.address, "--root-dir", "/var/lib/kubelet", "--v", "1",
        ])  # fmt: skip

    def _start(self, server: str, command: list[str | Path]) -> Child:
        child = self.inside.start(command, self.state.logs / f"{self.name}.{server}.log")
        self.children.append(child)
        return child


def _readied(log: Path) -> int:
    """How often a containerd of this log was ready for a kubelet. It answers `ctr` earlier; a kubelet that comes then ends."""
    return log.read_text(errors="replace").count("Start streaming server") if log.exists() else 0
