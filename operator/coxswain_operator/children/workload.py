"""The Workload of a group of pods in Kueue. Kueue makes one of the pods, which has no minimum; where the job has one, the
operator makes it before the pods, and then as many pods as it admits.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from coxswain_operator.children.common import CONTENT, owner_of
from coxswain_operator.children.pods import PodPlan
from coxswain_operator.children.scheduling import pod_group
from coxswain_operator.views import Manifest

GROUP, KIND = "kueue.x-k8s.io", "Workload"
VERSIONS = ("v1beta2", "v1beta1")  # the newest first: a release serves one or both
IS_GROUP = f"{GROUP}/is-group-workload"
# What Kueue reads of a template to find room; volumes and environment would only fill the server.
_OF_SPEC = ("nodeSelector", "affinity", "tolerations", "priorityClassName", "runtimeClassName", "overhead", "resources")
_OF_CONTAINER = ("name", "image", "resources", "restartPolicy")


def workload(plan: PodPlan, count: int) -> Manifest:
    """The Workload of a start for `count` trainers, or fewer. Its content does not depend on how many it was admitted with."""
    counts = {"coordinator": 1, "loader": plan.config.loaders, "trainer": count}
    queueing = plan.job["spec"]["scheduling"]["queueing"]
    sets = [_pod_set(role, counts[role], plan.spec_of(role)) for role in sorted(counts)]  # in the order of Kueue's own
    sets[-1]["minCount"] = plan.config.min_trainers
    spec = {"queueName": queueing["queueName"], "podSets": sets, **_priority(plan.job)}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    head = owner_of(plan.job)
    # No controller: a Workload that has one and no pods is finished by Kueue, which misses the controller's.
    owners = [{k: o[k] for k in ("apiVersion", "kind", "name", "uid")} for o in head["ownerReferences"]]
    metadata = {**head, "name": pod_group(plan.job, plan.start), "ownerReferences": owners}
    return {
        "apiVersion": f"{GROUP}/{VERSIONS[0]}",
        "kind": KIND,
        "metadata": {**metadata, "annotations": {IS_GROUP: "true", CONTENT: digest}},
        "spec": spec,
    }


def _priority(job: Manifest) -> dict[str, Any]:
    """The class that decides about its order: Kueue's, or else that of the pods."""
    wanted = job["spec"]["scheduling"]
    for group, kind, name in (
        (GROUP, "WorkloadPriorityClass", wanted["queueing"].get("priorityClassName")),
        ("scheduling.k8s.io", "PriorityClass", wanted.get("priorityClassName")),
    ):
        if name:
            return {"priorityClassRef": {"group": group, "kind": kind, "name": name}}
    return {}


def _pod_set(role: str, count: int, spec: Manifest) -> dict[str, Any]:
    lists = {
        key: [{k: c[k] for k in _OF_CONTAINER if k in c} for c in spec[key]]
        for key in ("initContainers", "containers")
        if key in spec
    }
    return {
        "name": role,
        "count": count,
        "template": {"spec": {**{k: spec[k] for k in _OF_SPEC if k in spec}, **lists}},
    }


def in_version(manifest: Manifest, version: str, priority: int) -> Manifest:
    """As this version of the API spells it. `priority`: the value of its class, if it names one."""
    spec = {key: value for key, value in manifest["spec"].items() if key != "priorityClassRef"}
    if ref := manifest["spec"].get("priorityClassRef"):
        source = f"{ref['group']}/{ref['kind'].lower()}"
        former = {"priorityClassSource": source, "priorityClassName": ref["name"]}
        spec |= {"priority": priority, **(former if version == "v1beta1" else {"priorityClassRef": ref})}
    return {**manifest, "apiVersion": f"{GROUP}/{version}", "spec": spec}
