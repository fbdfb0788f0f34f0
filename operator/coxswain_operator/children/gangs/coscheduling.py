"""The plugin Coscheduling of the scheduler-plugins project: a PodGroup and a label.

The scheduler that has the plugin may be the cluster's own or a second one.
"""

from __future__ import annotations

from typing import Any

from coxswain_operator.children.gangs.backend import GangBackend, GangSizes
from coxswain_operator.views import Manifest


class Coscheduling(GangBackend):
    api_version = "scheduling.x-k8s.io/v1alpha1"

    def spec(self, job: Manifest, sizes: GangSizes) -> dict[str, Any]:
        return {"minMember": sizes.total}

    def pod_labels(self, group: str) -> dict[str, str]:
        return {"scheduling.x-k8s.io/pod-group": group}
