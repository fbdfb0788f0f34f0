"""Small right objects of each kind, and ways to change them: what tests of the API start from."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from coxswain.names import API_VERSION

Manifest = dict[str, Any]
REMOVED = object()

_MIX = {"seed": 7, "sources": [{"name": "code", "sourceRef": {"name": "code"}, "weight": 700}]}
_SPECS: dict[str, Manifest] = {
    "DataSource": {"uri": "s3://corpus/code/", "format": "Parquet", "tokenizer": {"bytes": {}}},
    "DataMix": _MIX,
    "ParallelismPolicy": {"hybridData": {"tokensPerReplica": 1024}},
    "NodeQuarantine": {"node": "node-a", "reason": "Slow"},
    "TrainingJob": {
        "model": {"preset": "llama-tiny"},
        "mixRef": {"name": "mix"},
        "parallelism": {"hybridData": {"tokensPerReplica": 1024}},
        "batch": {"tokensPerStep": 8192, "maxSequenceTokens": 2048},
        "optimizer": {"learningRate": "3e-4"},
        "stop": {"steps": 100},
        "trainers": {"count": 4, "minCount": 2, "maxCount": 8},
        "checkpoint": {"uri": "s3://runs/demo/"},
    },
}
PHASE = {"fromStep": 10, "weights": [{"name": "code", "weight": 1}]}
SHAPE = {"layers": 2, "hidden": 64, "heads": 4, "kvHeads": 2, "feedForward": 128}

LAYOUT = {"replicas": [{"stages": [{"layers": 3}, {"layers": 1}]}]}  # of the two devices and four layers of the job


def sample(kind: str, changes: Mapping[str, Any] | None = None, name: str = "") -> Manifest:
    """A right object of the kind, with `changes` (path -> value, or REMOVED) applied."""
    name = name or {"TrainingJob": "demo", "DataSource": "code", "DataMix": "mix"}.get(kind, "policy")
    manifest = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": _SPECS[kind]}
    return changed(manifest, changes or {})


def changed(manifest: Manifest, changes: Mapping[str, Any]) -> Manifest:
    """A copy with the values at `spec.trainers.count`-like paths replaced; missing parents are made."""
    result = copy.deepcopy(manifest)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = result
        for step in parents:
            place = place.setdefault(step, {})
        if value is REMOVED:
            place.pop(last, None)
        else:
            place[last] = copy.deepcopy(value)
    return result
