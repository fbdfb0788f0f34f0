"""The configuration of a job's pods: the resolved job."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from coxswain.config import JobConfig
from coxswain.structs import UNDECODABLE
from coxswain_operator.children.common import child
from coxswain_operator.views import Manifest

JOB, SPECS = "job.json", "specs.json"


def config_map(job: Manifest, config: JobConfig, pin: str, recorded: str = "") -> Manifest:
    """`job.json`, which every service reads at its start. The coordinator follows edits of the mix in it.

    `recorded`: the job.json that the attempt began with. What only a newer release's pods understand in it stays.
    """
    text = _text(_with_unknown(recorded, config))
    return child(job, "v1", "ConfigMap", config_map_name(job, pin), {"data": {JOB: text}})


def job_in(data: Mapping[str, str]) -> JobConfig | None:
    """The job.json of a ConfigMap, as far as this release knows its fields. None: there is none, or it cannot be read."""
    return _read(data.get(JOB, ""))


@lru_cache(maxsize=256)  # each pass reads both ConfigMaps of its job, whose texts are equal until the mix is edited
def _read(text: str) -> JobConfig | None:
    try:
        return msgspec.json.decode(text.encode(), type=JobConfig)
    except UNDECODABLE:
        return None


@lru_cache(maxsize=256)
def _is_ours(text: str) -> bool:
    """Whether this release writes that text: then it knows every field of it."""
    known = _read(text)
    return known is not None and _text(known) == text


def _with_unknown(recorded: str, config: JobConfig) -> Any:
    """The configuration, with the fields of the record that this release does not know."""
    known = _read(recorded)
    if known is None or _is_ours(recorded):
        return config
    return _laid_over(msgspec.json.decode(recorded), msgspec.to_builtins(known), msgspec.to_builtins(config))


def _laid_over(recorded: Any, known: Any, new: Any) -> Any:
    """`new`, and all members of `recorded` that `known` lacks. `known` has the shape of `recorded`."""
    if isinstance(recorded, dict) and isinstance(new, dict):
        unknown = {key: value for key, value in recorded.items() if key not in known}
        inner = {key: _laid_over(recorded.get(key), known.get(key), value) for key, value in new.items()}
        return {**unknown, **inner}
    if isinstance(recorded, list) and isinstance(new, list | tuple) and len(recorded) == len(new):
        return [_laid_over(*items) for items in zip(recorded, known, new, strict=True)]
    return new


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
