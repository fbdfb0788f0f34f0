"""Kubernetes' Pod Security Standards: the fields of a pod that violate a level.

Each control has a name, which an administrator may allow. Pods are taken for Linux pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from coxswain_operator.views import Manifest

LEVELS: Final = ("privileged", "baseline", "restricted")  # each refuses what those before it refuse
Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Violation:
    """`path` is within the pod, such as ("spec", "hostNetwork")."""

    control: str
    path: Path
    value: Any
    allowed: str


@dataclass(frozen=True, slots=True)
class _Field:
    """A field that must have one of some values. `scope`: pod, container, or context (securityContext of both)."""

    control: str
    level: str
    scope: str
    path: tuple[str, ...]
    values: tuple[Any, ...]

    @property
    def allowed(self) -> str:
        return ", ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in self.values if v not in (None, ""))


_ABSENT = (None, False)
_TYPES = (None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_FIELDS: Final = (
    _Field("HostNetwork", "baseline", "pod", ("hostNetwork",), _ABSENT),
    _Field("HostPID", "baseline", "pod", ("hostPID",), _ABSENT),
    _Field("HostIPC", "baseline", "pod", ("hostIPC",), _ABSENT),
    _Field("HostProcess", "baseline", "context", ("windowsOptions", "hostProcess"), _ABSENT),
    _Field("Privileged", "baseline", "container", ("securityContext", "privileged"), _ABSENT),
    # The server takes Unmasked only of pods in a user namespace, of which `baseline` admits it.
    _Field("ProcMount", "restricted", "container", ("securityContext", "procMount"), (None, "Default")),
    _Field("AppArmor", "baseline", "context", ("appArmorProfile", "type"), (None, "RuntimeDefault", "Localhost")),
    _Field("SELinux", "baseline", "context", ("seLinuxOptions", "type"), _TYPES),
    _Field("SELinux", "baseline", "context", ("seLinuxOptions", "user"), (None, "")),
    _Field("SELinux", "baseline", "context", ("seLinuxOptions", "role"), (None, "")),
    _Field("Seccomp", "baseline", "context", ("seccompProfile", "type"), (None, "RuntimeDefault", "Localhost")),
    _Field("RunAsRoot", "restricted", "context", ("runAsNonRoot",), (None, True)),
    _Field("PrivilegeEscalation", "restricted", "container", ("securityContext", "allowPrivilegeEscalation"), (False,)),
)
# Needed by `restricted` in the securityContext of the pod, or of each container.
_NEEDED: Final = (
    ("RunAsRoot", ("runAsNonRoot",), "true"),
    ("Seccomp", ("seccompProfile", "type"), "RuntimeDefault, Localhost"),
)
_CAPABILITIES: Final = {
    "baseline": (
        "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID",
        "SETPCAP", "SETUID", "SYS_CHROOT",
    ),
    "restricted": ("NET_BIND_SERVICE",),
}  # fmt: skip
_VOLUMES: Final = (
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
)  # fmt: skip
_SYSCTLS: Final = (
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
)  # fmt: skip
_APPARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"


_PROBES: Final = (
    *((probe,) for probe in ("livenessProbe", "readinessProbe", "startupProbe")),
    *(("lifecycle", hook) for hook in ("postStart", "preStop")),
)


@dataclass(frozen=True, slots=True)
class _Pod:
    """A pod, with its containers and security contexts by their paths."""

    metadata: Manifest
    spec: Manifest

    @property
    def containers(self) -> Iterator[tuple[Path, Manifest]]:
        for field in ("initContainers", "containers"):
            for index, container in enumerate(self.spec.get(field) or ()):
                yield ("spec", field, index), container

    @property
    def contexts(self) -> Iterator[tuple[Path, Manifest]]:
        for where, holder in ((("spec",), self.spec), *self.containers):
            yield (*where, "securityContext"), holder.get("securityContext") or {}

    def holders(self, scope: str) -> Iterable[tuple[Path, Manifest]]:
        if scope == "pod":
            return [(("spec",), self.spec)]
        return self.containers if scope == "container" else self.contexts


def violations(metadata: Manifest, spec: Manifest, level: str) -> Iterator[Violation]:
    """What the level refuses in a pod. Null is absent. Root in a user namespace is no root of the node."""
    found = _violations(_Pod(metadata, spec), level)
    return (v for v in found if v.control != "RunAsRoot" or spec.get("hostUsers") is not False)


def _violations(pod: _Pod, level: str) -> Iterator[Violation]:
    for lowest, check in _CHECKS:
        if LEVELS.index(lowest) <= LEVELS.index(level):
            yield from check(pod)
    for field in _FIELDS:
        if LEVELS.index(field.level) <= LEVELS.index(level):
            yield from _wrong_values(pod, field)
    if level in _CAPABILITIES:
        yield from _added_capabilities(pod, _CAPABILITIES[level])


def _wrong_values(pod: _Pod, field: _Field) -> Iterator[Violation]:
    for where, holder in pod.holders(field.scope):
        value = _at(holder, field.path)
        if value not in field.values:
            yield Violation(field.control, (*where, *field.path), value, field.allowed)


def _at(holder: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        holder = holder.get(name) if isinstance(holder, dict) else None
    return holder


def _added_capabilities(pod: _Pod, allowed: tuple[str, ...]) -> Iterator[Violation]:
    for where, container in pod.containers:
        added = _at(container, ("securityContext", "capabilities", "add")) or ()
        for index, name in enumerate(added):
            if name not in allowed:
                path = (*where, "securityContext", "capabilities", "add", index)
                yield Violation("Capabilities", path, name, ", ".join(allowed))


def _kept_capabilities(pod: _Pod) -> Iterator[Violation]:
    for where, container in pod.containers:
        dropped = _at(container, ("securityContext", "capabilities", "drop")) or ()
        if "ALL" not in dropped:
            path = (*where, "securityContext", "capabilities", "drop")
            yield Violation("Capabilities", path, list(dropped), "a list with ALL")


def _host_ports(pod: _Pod) -> Iterator[Violation]:
    for where, container in pod.containers:
        for index, port in enumerate(container.get("ports") or ()):
            if port.get("hostPort"):
                yield Violation("HostPorts", (*where, "ports", index, "hostPort"), port["hostPort"], "0")


def _host_probes(pod: _Pod) -> Iterator[Violation]:
    paths = [(*probe, action, "host") for probe in _PROBES for action in ("httpGet", "tcpSocket")]
    for where, container in pod.containers:
        for path in paths:
            if host := _at(container, path):
                yield Violation("HostProbes", (*where, *path), host, "none: the pod's own address")


def _host_paths(pod: _Pod) -> Iterator[Violation]:
    for index, volume in enumerate(pod.spec.get("volumes") or ()):
        if volume.get("hostPath") is not None:
            path = ("spec", "volumes", index, "hostPath", "path")
            yield Violation("HostPath", path, volume["hostPath"].get("path"), "none")


def _volume_types(pod: _Pod) -> Iterator[Violation]:
    """A hostPath is a control of its own."""
    for index, volume in enumerate(pod.spec.get("volumes") or ()):
        for kind in (k for k, v in volume.items() if v is not None and k not in (*_VOLUMES, "name", "hostPath")):
            yield Violation("VolumeTypes", ("spec", "volumes", index, kind), kind, ", ".join(_VOLUMES))


def _sysctls(pod: _Pod) -> Iterator[Violation]:
    for index, sysctl in enumerate(_at(pod.spec, ("securityContext", "sysctls")) or ()):
        if sysctl.get("name") not in _SYSCTLS:
            path = ("spec", "securityContext", "sysctls", index, "name")
            yield Violation("Sysctls", path, sysctl.get("name"), ", ".join(_SYSCTLS))


def _app_armor_annotations(pod: _Pod) -> Iterator[Violation]:
    for key, value in (pod.metadata.get("annotations") or {}).items():
        if key.startswith(_APPARMOR) and value not in ("", "runtime/default") and not value.startswith("localhost/"):
            yield Violation("AppArmor", ("metadata", "annotations", key), value, "runtime/default, localhost/PROFILE")


def _root_users(pod: _Pod) -> Iterator[Violation]:
    for where, context in pod.contexts:
        if context.get("runAsUser") == 0:
            yield Violation("RunAsRoot", (*where, "runAsUser"), 0, "any other id")


def _left_open(pod: _Pod) -> Iterator[Violation]:
    """What neither the pod nor one of its containers says."""
    (where, whole), *own = pod.contexts
    for control, path, allowed in _NEEDED:
        if _at(whole, path) is None and any(_at(context, path) is None for _, context in own):
            yield Violation(control, (*where, *path), None, allowed)


_CHECKS: Final[tuple[tuple[str, Callable[[_Pod], Iterator[Violation]]], ...]] = (
    ("baseline", _host_ports),
    ("baseline", _host_probes),
    ("baseline", _host_paths),
    ("baseline", _sysctls),
    ("baseline", _app_armor_annotations),
    ("restricted", _volume_types),
    ("restricted", _root_users),
    ("restricted", _left_open),
    ("restricted", _kept_capabilities),
)
