"""Scheduling of pods: queue, priority, affinity, and how long they tolerate a lost node."""

from __future__ import annotations

from typing import Any

from coxswain.config import JobConfig
from coxswain.names import LABEL_ATTEMPT, LABEL_JOB_UID, LABEL_ROLE
from coxswain_operator.views import Manifest

POD_GROUP = "kueue.x-k8s.io/pod-group-name"
RETRIABLE = "kueue.x-k8s.io/retriable-in-group"
POD_SET = "kueue.x-k8s.io/role-hash"
# Kueue's finalizer keeps pods on unreachable nodes. Where its gate FailureRecoveryPolicy is on, it ends those that carry this.
DELETABLE = "kueue.x-k8s.io/safe-to-forcefully-delete"
LOST_NODE_SECONDS = 30  # Kubernetes' default is 300, and the whole gang waits meanwhile
_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
TOLERATIONS = [
    {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS} for key in _LOST
]


def of_pod(job: Manifest, role: str, attempt: int) -> dict[str, Any]:
    """The scheduling part of a role's pod spec."""
    wanted = job["spec"].get("scheduling", {})
    affinity = _affinity(job, wanted.get("topology", {}), attempt)
    return {
        "tolerations": TOLERATIONS,
        **priority_class(job),
        **({"affinity": affinity} if affinity and role == "trainer" else {}),
    }


def priority_class(job: Manifest) -> dict[str, Any]:
    """The job's, where it has one: of its pods, and of their group where the scheduler weighs that and not the pods."""
    name = job["spec"].get("scheduling", {}).get("priorityClassName", "")
    return {"priorityClassName": name} if name else {}


def queue(job: Manifest, config: JobConfig, start: int, pod_set: str) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations that make Kueue admit all pods of one start together.

    Without the name of a set Kueue takes a hash of the pod's shape, affinity included: a successor that avoids another node than
    its peers would belong to no set that was admitted, and stay gated.
    """
    queueing = job["spec"].get("scheduling", {}).get("queueing", {})
    if queueing.get("backend", "None") != "Kueue":
        return {}, {}
    priority = queueing.get("priorityClassName", "")
    labels = {
        "kueue.x-k8s.io/queue-name": queueing["queueName"],
        POD_GROUP: pod_group(job, start),
        **({"kueue.x-k8s.io/priority-class": priority} if priority else {}),
    }
    count = str(1 + config.loaders + config.trainers)
    annotations = {"kueue.x-k8s.io/pod-group-total-count": count, DELETABLE: "true", POD_SET: pod_set}
    return labels, {**annotations, **(_FEWER if has_minimum(job) else {})}


def has_minimum(job: Manifest) -> bool:
    """Whether Kueue may admit fewer trainers than the job asks for: the operator then makes the Workload (workload.py)."""
    spec = job["spec"]
    queueing = (spec.get("scheduling") or {}).get("queueing") or {}
    return queueing.get("backend") == "Kueue" and spec["trainers"].get("minCount") is not None


# Fewer pods than their set counts are no pods that are missing.
_FEWER = {"kueue.x-k8s.io/pod-group-fast-admission": "true"}


def pod_group(job: Manifest, start: int) -> str:
    """Name of the group of all pods of one start, and of its Workload, which Kueue creates."""
    meta = job["metadata"]
    return f"{meta['name']}-{meta['uid'][:8]}-{start}"


def _affinity(job: Manifest, topology: dict[str, str], attempt: int) -> dict[str, Any]:
    """Places trainers of one attempt near each other; the next attempt may be placed elsewhere."""
    key = topology.get("required") or topology.get("preferred")
    labels = {LABEL_JOB_UID: job["metadata"]["uid"], LABEL_ROLE: "trainer", LABEL_ATTEMPT: str(attempt)}
    term = {"topologyKey": key, "labelSelector": {"matchLabels": labels}}
    if topology.get("required"):
        return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    weighted = {"weight": 100, "podAffinityTerm": term}
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}} if key else {}


def avoiding(spec: Manifest, nodes: tuple[str, ...]) -> Manifest:
    """The pod spec kept off these nodes, whatever affinity it has. Terms are alternatives: each of them is narrowed."""
    if not nodes:
        return spec
    affinity = spec.get("affinity") or {}
    of_nodes = affinity.get("nodeAffinity") or {}
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]  # one value each
    required = of_nodes.get(_REQUIRED)
    if required is None:
        narrowed: Manifest = {"nodeSelectorTerms": [{"matchFields": others}]}
    else:  # a term without anything matches no node, and must not begin to
        terms = required.get("nodeSelectorTerms") or ()
        fields = [
            {**t, "matchFields": [*(t.get("matchFields") or ()), *others]} if any(t.values()) else t for t in terms
        ]
        narrowed = {**required, "nodeSelectorTerms": fields}
    return {**spec, "affinity": {**affinity, "nodeAffinity": {**of_nodes, _REQUIRED: narrowed}}}


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
