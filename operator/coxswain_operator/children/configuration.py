"""The configuration of a job's pods: the resolved job, and the token that they authenticate with."""

from __future__ import annotations

import base64

import msgspec

from coxswain.config import JobConfig
from coxswain_operator.children.common import child
from coxswain_operator.views import Manifest


def config_map(job: Manifest, config: JobConfig) -> Manifest:
    """`job.json`, read once by every service as it starts."""
    text = msgspec.json.format(msgspec.json.encode(config, order="deterministic"), indent=2).decode()
    return child(job, "v1", "ConfigMap", config_map_name(job), {"data": {"job.json": text}})


def secret(job: Manifest, token: str) -> Manifest:
    """Created once, from a random token, and kept while the job exists."""
    data = {"token": base64.b64encode(token.encode()).decode()}
    manifest = child(job, "v1", "Secret", secret_name(job), {"type": "Opaque", "data": data})
    manifest["metadata"]["annotations"] = {}  # a hash of the token has no business in the open
    return manifest


def config_map_name(job: Manifest) -> str:
    return f"{job['metadata']['name']}-config"


def secret_name(job: Manifest) -> str:
    return f"{job['metadata']['name']}-token"
