"""Where the API server keeps each kind that the operator deals with."""

from __future__ import annotations

from dataclasses import dataclass

from coxswain.api.kinds import KINDS as OUR_KINDS
from coxswain.names import API_VERSION, LABEL_JOB_UID
from coxswain_operator.children.gangs import BACKENDS
from coxswain_operator.children.workload import GROUP as KUEUE
from coxswain_operator.children.workload import VERSIONS


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind's place. `selector`: of a kind that others use too, only what carries this label is looked at.

    `optional`: jobs run without it, should its definition not be installed.
    """

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True
    selector: str = ""
    optional: bool = False

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Of the collection (of all namespaces without one), an object, or a subresource."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        within = f"namespaces/{namespace}" if self.namespaced and namespace else ""
        return "/".join(part for part in (root, within, self.plural, name, subresource) if part)


FIELD_MANAGER = "coxswain-operator"
SECRETS = Resource("v1", "Secret", "secrets")
NAMESPACES = Resource("v1", "Namespace", "namespaces", namespaced=False)
_ALL = (
    *(Resource(API_VERSION, k.name, k.plural, k.namespaced, optional=bool(k.switch)) for k in OUR_KINDS),
    Resource("v1", "Pod", "pods", selector=LABEL_JOB_UID),
    SECRETS,
    Resource("v1", "ConfigMap", "configmaps", selector=LABEL_JOB_UID),
    Resource("v1", "Service", "services", selector=LABEL_JOB_UID),
    Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", selector=LABEL_JOB_UID),
    Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", selector=LABEL_JOB_UID),
    Resource("v1", "Node", "nodes", namespaced=False),
)

BY_KIND = {resource.kind: resource for resource in _ALL}


def with_groups(gang_backend: str) -> dict[str, Resource]:
    """BY_KIND, and the groups of pods of a backend (its name in BACKENDS; empty: none)."""
    if not gang_backend:
        return BY_KIND
    backend = BACKENDS[gang_backend]
    return {
        **BY_KIND,
        backend.kind: Resource(backend.api_version, backend.kind, backend.plural, selector=LABEL_JOB_UID),
    }


EVENTS = Resource("events.k8s.io/v1", "Event", "events")
WORKLOADS = tuple(Resource(f"{KUEUE}/{version}", "Workload", "workloads") for version in VERSIONS)
WORKLOAD_PRIORITIES = tuple(
    Resource(f"{KUEUE}/{version}", "WorkloadPriorityClass", "workloadpriorityclasses", namespaced=False)
    for version in VERSIONS
)
PRIORITIES = Resource("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", namespaced=False)
LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")
