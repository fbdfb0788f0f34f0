"""Settings of the operator's installation, not of a job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults suit the local cluster, which has no images."""

    data_image: str = "coxswain-data"  # coordinator, loaders and constructors, unless the job names its own
    train_image: str = "coxswain-train"  # trainers, likewise
    pull_policy: str = "IfNotPresent"
    user: int = 65532  # numeric id that the containers run as
    prometheus_namespace: str = ""  # name of the namespace whose pods may scrape; empty: none
    operator_namespace: str = "coxswain-system"
    at_once: int = 64  # requests under way, to the API server and for one job
