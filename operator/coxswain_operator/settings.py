"""Settings of the operator's installation, not of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

Level: TypeAlias = Literal["privileged", "baseline", "restricted"]
Control: TypeAlias = Literal[
    "AppArmor", "Capabilities", "HostIPC", "HostNetwork", "HostPID", "HostPath", "HostPorts", "HostProbes", "HostProcess",
    "PrivilegeEscalation", "Privileged", "ProcMount", "RunAsRoot", "SELinux", "Seccomp", "ServiceAccountTokens", "Sysctls",
    "VolumeTypes",
]  # fmt: skip


class TemplatePolicy(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What pod templates may set: the chart's `podTemplates`. Names may hold `*`."""

    level: Level = "restricted"  # of Pod Security, in namespaces without a label that names one
    allow: tuple[Control, ...] = ()  # beyond that level
    capabilities: tuple[str, ...] = ()  # that containers may add beyond it
    host_paths: tuple[str, ...] = ()  # folders of nodes that pods may mount beyond it, with all below them
    service_accounts: tuple[str, ...] = ("*",)
    priority_classes: tuple[str, ...] = ("*",)
    schedulers: tuple[str, ...] = ("*",)
    platform_user: bool = False  # whether the platform gives pods their user and groups, instead of Settings.user


_DEFAULT = TemplatePolicy()


@dataclass(frozen=True, slots=True)
class Settings:
    """The defaults suit the local cluster, which has no images."""

    data_image: str = "coxswain-data"  # of coordinator, loaders and constructors, unless the job names its own
    train_image: str = "coxswain-train"  # of trainers, likewise
    pull_policy: str = "IfNotPresent"
    user: int = 65532  # numeric id that the containers run as
    prometheus_namespace: str = ""  # name of the namespace whose pods may scrape; empty: none
    operator_namespace: str = "coxswain-system"
    gang_backend: str = ""  # a name in children.gangs.BACKENDS; empty: the scheduler knows no groups
    gang_scheduler: str = ""  # schedulerName of pods in groups; empty: the backend's own
    at_once: int = 64  # requests under way, to the API server and for one job
    managed_by: str = ""  # the spec.managedBy of the jobs that are reconciled; empty: all
    templates: TemplatePolicy = _DEFAULT
    quarantine: bool = False  # whether NodeQuarantines are read, and made for jobs that ask for another node
    quarantine_limit: int = 1  # nodes that the operator itself keeps in quarantine at a time
