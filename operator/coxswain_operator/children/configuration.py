"""The configuration of a job's pods: the resolved job."""

from __future__ import annotations

import msgspec

from coxswain.config import JobConfig
from coxswain_operator.children.common import child
from coxswain_operator.views import Manifest


def config_map(job: Manifest, config: JobConfig) -> Manifest:
    """`job.json`, which every service reads once at its start."""
    text = msgspec.json.format(msgspec.json.encode(config, order="deterministic"), indent=2).decode()
    return child(job, "v1", "ConfigMap", config_map_name(job), {"data": {"job.json": text}})


def config_map_name(job: Manifest) -> str:
    return f"{job['metadata']['name']}-config"
