"""Lists all that the machine lacks for a cluster, and how to install it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.node import MASKED
from e2e.cluster.process import REPOSITORY
from e2e.cluster.settings import CNI_FOLDERS

PLUGINS = ("ptp", "host-local", "portmap", "loopback")
# Command -> Debian's (and Ubuntu's) package.
COMMANDS = {
    "containerd": "containerd", "ctr": "containerd", "containerd-shim-runc-v2": "containerd", "runc": "runc",
    "iptables": "iptables", "ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "openssl": "openssl",
}  # fmt: skip
# Likewise, for the images of the tests and the demo.
BUILDERS = {"buildah": "buildah", "debootstrap": "debootstrap"}
PLUGIN_PACKAGE = "containernetworking-plugins"
DEMO_DISK, DEMO_MEMORY = 40, 4  # GB that `make demo` takes; GiB that cluster, operator and the example's job take
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
# Tried in namespaces of their own, so nothing of the machine changes. Each line: what it is about,
# and a shell command.
TRIALS = {
    "a network bridge (kernel module bridge)": "ip link add name trial type bridge",
    "virtual links (kernel module veth)": "ip link add name one type veth peer name two",
    "address translation by iptables (kernel modules nf_nat, xt_MASQUERADE)": "iptables -t nat -A POSTROUTING -j MASQUERADE",
    "connection tracking (kernel module xt_conntrack)": "iptables -A FORWARD -m conntrack --ctstate INVALID -j DROP",
    "overlay mounts (kernel module overlay)":
        "mount -t tmpfs tmpfs /mnt && mkdir /mnt/l /mnt/u /mnt/w /mnt/m && "
        "mount -t overlay overlay -o lowerdir=/mnt/l,upperdir=/mnt/u,workdir=/mnt/w /mnt/m",
}  # fmt: skip
_NAMESPACES = "namespaces of processes, mounts and networks (a container needs to be privileged)"


@dataclass(frozen=True)
class Machine:
    """What was found. `disk`: GB free for the checkout. `memory`: GiB available."""

    system: str
    root: bool
    commands: frozenset[str]
    plugins: frozenset[str]
    controllers: frozenset[str]
    failed_trials: tuple[str, ...] = field(default=())
    disk: int = DEMO_DISK
    memory: int = DEMO_MEMORY


def demo_lacks(machine: Machine) -> list[str]:
    """What builds the images of `make demo` and is missing: one line each, with the command that brings it."""
    return [
        f"command {name}: not found: apt-get install --no-install-recommends {package}"
        for name, package in BUILDERS.items()
        if name not in machine.commands
    ]


def demo_room(machine: Machine) -> list[str]:
    """What is scarce for a first `make demo`, which takes its room only once: one line each, with the way out."""
    lines = []
    if machine.disk < DEMO_DISK:
        lines.append(f"disk: {machine.disk} GB free, and it takes {DEMO_DISK} GB: delete files, or use a larger disk")
    if machine.memory < DEMO_MEMORY:
        lines.append(
            f"memory: {machine.memory} GiB available, and cluster and job take {DEMO_MEMORY} GiB: end other programs"
        )
    return lines


def lacks(machine: Machine, state: Path, further: Mapping[str, str] | None = None) -> list[str]:
    """One line for each thing, empty when all is there.

    `further`: commands with their packages, such as BUILDERS.
    """
    if machine.system != "Linux":
        return [f"operating system: {machine.system}, and nodes need Linux"]
    packages = _packages(machine, {**COMMANDS, **(further or {})})
    lines = (
        [] if machine.root else ["root: namespaces and cgroups are root's; run it with sudo, or as root in a container"]
    )
    lines += [f"{what}: not found ({package})" for what, package in packages.items()]
    if packages:
        lines.append(f"    apt-get install --no-install-recommends {' '.join(sorted(set(packages.values())))}")
    without = [name for name in CONTROLLERS if name not in machine.controllers]
    lines += [f"cgroup controller {name}: not mounted under /sys/fs/cgroup" for name in without]
    lines += [f"{what}: refused by the kernel" for what in machine.failed_trials]
    return lines + _state_lacks(state)


def _packages(machine: Machine, wanted: Mapping[str, str]) -> dict[str, str]:
    """What is missing -> the package that brings it."""
    commands = {f"command {name}": package for name, package in wanted.items() if name not in machine.commands}
    plugins = {f"network plugin {name}": PLUGIN_PACKAGE for name in PLUGINS if name not in machine.plugins}
    return {**commands, **plugins}


def _state_lacks(state: Path) -> list[str]:
    inside = [folder for folder in MASKED if state.is_relative_to(folder)]
    return [
        f"--state {state}: lies in {folder}, and every node has its own {folder}; name a folder elsewhere"
        for folder in inside
    ]


def look() -> Machine:
    """Tries what can only be tried."""
    root = os.geteuid() == 0
    path = os.environ.get("PATH", os.defpath)
    # An ordinary user need not have root's folders in the path; the advice is to become root anyway.
    searched = path if root else f"{path}:/usr/sbin:/sbin"
    commands = frozenset(name for name in (*COMMANDS, *BUILDERS) if shutil.which(name, path=searched))
    return Machine(
        system=platform.system(),
        root=root,
        commands=commands,
        plugins=frozenset(name for name in PLUGINS if any((Path(folder) / name).exists() for folder in CNI_FOLDERS)),
        controllers=_controllers(),
        failed_trials=_failed_trials() if root and {"unshare", "ip", "iptables"} <= commands else (),
        disk=shutil.disk_usage(REPOSITORY).free // 10**9,
        memory=available(Path("/proc/meminfo").read_text()),
    )


def available(meminfo: str) -> int:
    """GiB that programs may still have, by /proc/meminfo."""
    (kilobytes,) = re.findall(r"^MemAvailable: +(\d+) kB$", meminfo, re.MULTILINE)
    return int(kilobytes) >> 20


def _controllers() -> frozenset[str]:
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    names = unified.read_text().split() if unified.exists() else []
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    old = [option for words in mounts if words[2] == "cgroup" for option in words[3].split(",")]
    return frozenset([*names, *old])


def _failed_trials() -> tuple[str, ...]:
    if not _works("true"):
        return (_NAMESPACES,)
    return tuple(what for what, command in TRIALS.items() if not _works(command))


def _works(command: str) -> bool:
    trial = ["unshare", "--fork", "--pid", "--mount", "--net", "--mount-proc", "sh", "-c", command]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0
