"""What an API for groups of pods has to offer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from coxswain_operator.views import Manifest


@dataclass(frozen=True, slots=True)
class GangSizes:
    """Pods of each role that a start needs at least."""

    coordinator: int
    loader: int
    trainer: int

    @property
    def total(self) -> int:
        return self.coordinator + self.loader + self.trainer


class GangBackend(ABC):
    """One API. `scheduler`: schedulerName of the pods, unless the installation names another; empty: the cluster's own."""

    api_version: ClassVar[str]
    kind: ClassVar[str] = "PodGroup"
    plural: ClassVar[str] = "podgroups"
    scheduler: ClassVar[str] = ""

    @abstractmethod
    def spec(self, job: Manifest, sizes: GangSizes) -> dict[str, Any]:
        """Of the group's object. The object's name is the group's."""

    def pod_labels(self, group: str) -> dict[str, str]:
        return {}

    def pod_annotations(self, group: str, role: str) -> dict[str, str]:
        return {}

    def pod_spec(self, group: str) -> dict[str, Any]:
        return {}
