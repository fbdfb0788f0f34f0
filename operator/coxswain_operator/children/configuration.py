"""The configuration of a job's pods: the resolved job."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coxswain.config import JobConfig
from coxswain_operator.children.common import child
from coxswain_operator.views import Manifest

JOB, SPECS = "job.json", "specs.json"


def config_map(job: Manifest, config: JobConfig, pin: str) -> Manifest:
    """`job.json`, which every service reads at its start. The coordinator follows edits of the mix in it."""
    return child(job, "v1", "ConfigMap", config_map_name(job, pin), {"data": {JOB: _text(config)}})


def attempt_record(job: Manifest, config: JobConfig, specs: Mapping[str, object], pin: str) -> Manifest:
    """What an attempt began with. No pod mounts it."""
    data = {JOB: _text(config), SPECS: _text(specs)}
    return child(job, "v1", "ConfigMap", record_name(job, pin), {"data": data, "immutable": True})


def _text(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value, order="deterministic"), indent=2).decode()


def config_map_name(job: Manifest, pin: str) -> str:
    """Another name for another content: a kubelet that remembers an earlier attempt's must not mount that."""
    return "-".join(filter(None, (job["metadata"]["name"], "config", pin)))


def record_name(job: Manifest, pin: str) -> str:
    return "-".join(filter(None, (job["metadata"]["name"], "attempt", pin)))
