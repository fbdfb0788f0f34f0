"""Manifests of everything that a TrainingJob owns: pure builders."""

from __future__ import annotations

from coxswain.config import JobConfig
from coxswain_operator.children import gangs
from coxswain_operator.children.common import CONTENT, labels_of
from coxswain_operator.children.configuration import config_map
from coxswain_operator.children.network import disruption_budget, network_policy, service
from coxswain_operator.children.pods import PodPlan
from coxswain_operator.settings import Settings
from coxswain_operator.views import Manifest

__all__ = ["CONTENT", "KINDS", "PodPlan", "children", "kinds", "labels_of"]

# Without pods and Secrets, in creation order: pods mount the first, and the second gives host names.
KINDS = ("ConfigMap", "Service", "NetworkPolicy", "PodDisruptionBudget")


def kinds(settings: Settings) -> tuple[str, ...]:
    """Of all children but the pods and their token."""
    backend = gangs.backend_of(settings)
    return KINDS if backend is None else (*KINDS, backend.kind)


def children(
    job: Manifest,
    config: JobConfig,
    settings: Settings,
    attempt: int,
    pin: str = "",
    start: int = 0,
    trainers: int = 0,
    recorded: str = "",
) -> tuple[Manifest, ...]:
    """All children but the pods, their token and the attempt's record. `start`: as of a PodPlan.

    `trainers`: that the gang has now, if the configuration's number has changed since. `recorded`: as of `config_map`.
    """
    return (
        config_map(job, config, pin, recorded),
        service(job),
        network_policy(job, settings),
        *gangs.group(job, config, settings, start),
        disruption_budget(job, config, attempt, trainers or config.trainers),
    )
