"""A job's cost data: its profile, or the constants that its policy's hardware names."""

from __future__ import annotations

from pathlib import Path

from coxswain.config import JobConfig
from coxswain.cost.constants import Hardware, load_hardware, read_hardware
from coxswain.errors import Refused
from coxswain.uris import folder_and_key
from coxswain_link.store import BucketNotFound, NotFound, open_store


def hardware_of(job: JobConfig, secrets: Path | None) -> Hardware:
    """Reads the profile with the checkpoint's endpoint. Raises Refused "BadHardware" where it is none."""
    uri = job.parallelism.profile
    if not uri:
        return load_hardware(job.parallelism.hardware)
    folder, key = folder_and_key(uri)
    try:
        content = open_store(folder, job.checkpoint.endpoint, secrets).get(key)
    except (NotFound, BucketNotFound):
        way_out = "write it there with python -m coxswain_train.profile, or remove the field"
        raise Refused("BadHardware", f"parallelism.profile.uri {uri!r}: does not exist; {way_out}") from None
    return read_hardware(content, uri)
