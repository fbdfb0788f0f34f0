"""Pod Security: each field that a level refuses is named with its place, and the pods of ordinary jobs keep the strictest."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain_operator.children.overlay import hardened, merged
from coxswain_operator.children.pod_security import violations
from coxswain_operator.views import Manifest

SAFE: Manifest = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {"name": "main", "image": "x",
         "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}},
    ],
}  # fmt: skip


def of_main(**fields: Any) -> Manifest:
    return {"containers": [{"name": "main", **fields}]}


def context(**fields: Any) -> Manifest:
    return of_main(securityContext=fields)


def added(name: str) -> Manifest:
    return context(capabilities={"add": [name]})


def volume(**source: Any) -> Manifest:
    return {"volumes": [{"name": "v", **source}]}


# What is laid over a safe pod, the control, the place, and the least level that refuses it.
REFUSED: list[tuple[Manifest, str, str, str]] = [
    ({"hostNetwork": True}, "HostNetwork", "spec.hostNetwork", "baseline"),
    ({"hostPID": True}, "HostPID", "spec.hostPID", "baseline"),
    ({"hostIPC": True}, "HostIPC", "spec.hostIPC", "baseline"),
    (context(privileged=True, allowPrivilegeEscalation=True),
     "Privileged", "spec.containers.0.securityContext.privileged", "baseline"),
    ({"hostUsers": False, **context(procMount="Unmasked")}, "ProcMount", "spec.containers.0.securityContext.procMount",
     "restricted"),
    (context(appArmorProfile={"type": "Unconfined"}),
     "AppArmor", "spec.containers.0.securityContext.appArmorProfile.type", "baseline"),
    ({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}},
     "AppArmor", "spec.securityContext.appArmorProfile.type", "baseline"),
    (context(seLinuxOptions={"type": "spc_t"}), "SELinux", "spec.containers.0.securityContext.seLinuxOptions.type", "baseline"),
    (context(seLinuxOptions={"user": "root"}), "SELinux", "spec.containers.0.securityContext.seLinuxOptions.user", "baseline"),
    ({"securityContext": {"seLinuxOptions": {"role": "sysadm_r"}}},
     "SELinux", "spec.securityContext.seLinuxOptions.role", "baseline"),
    (context(seccompProfile={"type": "Unconfined"}),
     "Seccomp", "spec.containers.0.securityContext.seccompProfile.type", "baseline"),
    ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
     "Seccomp", "spec.securityContext.seccompProfile.type", "baseline"),
    ({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
     "Sysctls", "spec.securityContext.sysctls.0.name", "baseline"),
    (of_main(ports=[{"containerPort": 80, "hostPort": 80}]), "HostPorts", "spec.containers.0.ports.0.hostPort", "baseline"),
    (of_main(livenessProbe={"httpGet": {"port": 80, "host": "10.0.0.1"}}),
     "HostProbes", "spec.containers.0.livenessProbe.httpGet.host", "baseline"),
    (of_main(lifecycle={"preStop": {"tcpSocket": {"port": 80, "host": "10.0.0.1"}}}),
     "HostProbes", "spec.containers.0.lifecycle.preStop.tcpSocket.host", "baseline"),
    (volume(hostPath={"path": "/"}), "HostPath", "spec.volumes.0.hostPath.path", "baseline"),
    (added("SYS_PTRACE"), "Capabilities", "spec.containers.0.securityContext.capabilities.add.0", "baseline"),
    (added("IPC_LOCK"), "Capabilities", "spec.containers.0.securityContext.capabilities.add.0", "baseline"),
    (added("CHOWN"), "Capabilities", "spec.containers.0.securityContext.capabilities.add.0", "restricted"),
    (context(allowPrivilegeEscalation=True),
     "PrivilegeEscalation", "spec.containers.0.securityContext.allowPrivilegeEscalation", "restricted"),
    (context(allowPrivilegeEscalation=None),
     "PrivilegeEscalation", "spec.containers.0.securityContext.allowPrivilegeEscalation", "restricted"),
    (context(capabilities={"drop": None}), "Capabilities", "spec.containers.0.securityContext.capabilities.drop", "restricted"),
    (context(runAsNonRoot=False), "RunAsRoot", "spec.containers.0.securityContext.runAsNonRoot", "restricted"),
    ({"securityContext": {"runAsNonRoot": False}}, "RunAsRoot", "spec.securityContext.runAsNonRoot", "restricted"),
    ({"securityContext": {"runAsNonRoot": None}}, "RunAsRoot", "spec.securityContext.runAsNonRoot", "restricted"),
    ({"securityContext": {"runAsUser": 0}}, "RunAsRoot", "spec.securityContext.runAsUser", "restricted"),
    (context(runAsUser=0), "RunAsRoot", "spec.containers.0.securityContext.runAsUser", "restricted"),
    ({"securityContext": {"seccompProfile": None}}, "Seccomp", "spec.securityContext.seccompProfile.type", "restricted"),
    (volume(nfs={"server": "files", "path": "/"}), "VolumeTypes", "spec.volumes.0.nfs", "restricted"),
    ({"initContainers": [{"name": "setup", "image": "x", "securityContext": {"privileged": True}}]},
     "Privileged", "spec.initContainers.0.securityContext.privileged", "baseline"),
]  # fmt: skip
# What the strictest level takes.
TAKEN: list[Manifest] = [
    {},
    added("NET_BIND_SERVICE"),
    {"hostNetwork": False, "securityContext": {"runAsUser": 1000}},
    {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}}},
    {"securityContext": {"runAsNonRoot": None}, **context(runAsNonRoot=True)},
    {"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_keepalive_time", "value": "1"}]}},
    context(seLinuxOptions={"type": "container_t", "level": "s0:c1"}),
    context(procMount="Default", privileged=False),
    {"hostUsers": False, "securityContext": {"runAsNonRoot": False}, **context(runAsUser=0)},
    of_main(ports=[{"containerPort": 80}], readinessProbe={"httpGet": {"port": 80}}),
    volume(projected={"sources": [{"downwardAPI": {"items": []}}]}),
    volume(csi={"driver": "d"}, nfs=None),
    volume(ephemeral={"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}),
]  # fmt: skip
LEVELS = ("privileged", "baseline", "restricted")


def pod(change: Manifest) -> Manifest:
    laid: Manifest = merged(SAFE, change)
    return laid


def found(spec: Manifest, level: str, **metadata: Any) -> set[tuple[str, str]]:
    return {(v.control, ".".join(map(str, v.path))) for v in violations(metadata, spec, level)}


@pytest.mark.parametrize(("change", "control", "place", "least"), REFUSED, ids=str)
def test_a_level_refuses_a_field_with_its_control_and_its_place_and_a_weaker_one_takes_it(
    change: Manifest, control: str, place: str, least: str
) -> None:
    for level in LEVELS:
        expected = LEVELS.index(level) >= LEVELS.index(least)
        assert ((control, place) in found(pod(change), level)) == expected, level


@pytest.mark.parametrize("change", TAKEN, ids=str)
def test_the_strictest_level_takes_what_the_standard_names(change: Manifest) -> None:
    assert found(pod(change), "restricted") == set()


def test_one_container_that_leaves_open_what_the_pod_leaves_open_is_enough() -> None:
    both = {"securityContext": {"runAsNonRoot": None}, "containers": [
        {"name": "main", "securityContext": {"runAsNonRoot": True}}, {**SAFE["containers"][0], "name": "other"}]}  # fmt: skip
    assert found(pod(both), "restricted") == {("RunAsRoot", "spec.securityContext.runAsNonRoot")}


def test_a_profile_in_an_annotation_counts_as_one_in_a_field() -> None:
    key = "container.apparmor.security.beta.kubernetes.io/main"
    assert found(SAFE, "baseline", annotations={key: "unconfined"}) == {("AppArmor", f"metadata.annotations.{key}")}
    for profile in ("runtime/default", "localhost/mine"):
        assert found(SAFE, "baseline", annotations={key: profile, "other": "unconfined"}) == set()


def test_a_container_that_says_nothing_gets_the_rights_of_ours() -> None:
    spec = pod({"containers": [{"name": "shipper", "image": "y"}]})
    assert found(spec, "restricted") != set()
    assert found(hardened(spec), "restricted") == set()


@pytest.mark.parametrize(
    "asked",
    [{"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}, {"capabilities": {"add": ["CAP_SYS_ADMIN"]}}],
    ids=str,
)
def test_a_container_that_escalates_is_one_that_kubernetes_takes(asked: Manifest) -> None:
    (container,) = hardened(pod(context(**asked)))["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is True


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        ({"add": ["IPC_LOCK"]}, {"drop": ["ALL"], "add": ["IPC_LOCK"]}),  # as for RDMA
        ({"add": ["IPC_LOCK"], "drop": ["NET_RAW"]}, {"drop": ["NET_RAW"], "add": ["IPC_LOCK"]}),
        ({}, {"drop": ["ALL"]}),
        (None, {"drop": ["ALL"]}),
    ],
)
def test_a_container_has_the_capabilities_that_it_asks_for_and_drops_all_others_unless_it_says_which(
    asked: Manifest | None, made: Manifest
) -> None:
    (container,) = hardened({"containers": [{"name": "main", "securityContext": {"capabilities": asked}}]})[
        "containers"
    ]
    assert container["securityContext"]["capabilities"] == made
