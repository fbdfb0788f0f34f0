"""Settings of the operator's installation, not of a job."""

from __future__ import annotations

from dataclasses import dataclass


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
