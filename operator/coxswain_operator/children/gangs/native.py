"""Kubernetes' own groups (KEP-4671), behind the gate GenericWorkload: a Workload in 1.35, a PodGroup in later releases."""

from __future__ import annotations

from typing import Any

from coxswain.names import GROUP
from coxswain_operator.children.gangs.backend import GangBackend, GangSizes
from coxswain_operator.children.scheduling import priority_class
from coxswain_operator.views import Manifest

_ONLY = "gang"  # the name of the group inside the Workload


class NativeWorkload(GangBackend):
    """Kubernetes 1.35. The scheduler needs the gate GangScheduling too."""

    api_version = "scheduling.k8s.io/v1alpha1"
    kind, plural = "Workload", "workloads"

    def spec(self, job: Manifest, sizes: GangSizes) -> dict[str, Any]:
        controller = {"apiGroup": GROUP, "kind": "TrainingJob", "name": job["metadata"]["name"]}
        only = {"name": _ONLY, "policy": {"gang": {"minCount": sizes.total}}}
        return {"controllerRef": controller, "podGroups": [only]}

    def pod_spec(self, group: str) -> dict[str, Any]:
        return {"workloadRef": {"name": group, "podGroup": _ONLY}}


class NativePodGroup(GangBackend):
    """Kubernetes 1.37."""

    api_version = "scheduling.k8s.io/v1beta1"

    def spec(self, job: Manifest, sizes: GangSizes) -> dict[str, Any]:
        return {"schedulingPolicy": {"gang": {"minCount": sizes.total}}, **priority_class(job)}

    def pod_spec(self, group: str) -> dict[str, Any]:
        return {"schedulingGroup": {"podGroupName": group}}
