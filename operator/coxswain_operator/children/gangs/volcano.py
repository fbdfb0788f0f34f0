"""Volcano's scheduler: a PodGroup and annotations. It knows roles: no trainers are placed without their coordinator."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from coxswain_operator.children.gangs.backend import GangBackend, GangSizes
from coxswain_operator.children.scheduling import priority_class
from coxswain_operator.views import Manifest

QUEUE_LABEL = "volcano.sh/queue-name"  # of the TrainingJob, as KubeRay reads it of its kinds


class Volcano(GangBackend):
    api_version = "scheduling.volcano.sh/v1beta1"
    scheduler = "volcano"

    def spec(self, job: Manifest, sizes: GangSizes) -> dict[str, Any]:
        queue = (job["metadata"].get("labels") or {}).get(QUEUE_LABEL, "")
        spec = {"minMember": sizes.total, "minTaskMember": asdict(sizes), **priority_class(job)}
        return {**spec, "queue": queue} if queue else spec

    def pod_annotations(self, group: str, role: str) -> dict[str, str]:
        return {"scheduling.k8s.io/group-name": group, "volcano.sh/task-spec": role}
