"""Creates and updates the objects of the user's files in the work directory's cluster."""

from __future__ import annotations

import copy
from typing import Any

from coxswain.api.validate import check
from coxswain.errors import Refused
from coxswain_operator.local import LocalCluster

Manifest = dict[str, Any]

NAMESPACE = "default"

_CONTENT = ("spec", "data", "stringData")


async def apply(cluster: LocalCluster, objects: list[Manifest]) -> Manifest:
    """Stores all objects and returns the TrainingJob as stored.

    Raises Refused, naming every field that may not change.
    """
    wanted = [_in_namespace(o) for o in objects]
    stored = [await cluster.get(o["kind"], NAMESPACE, o["metadata"]["name"]) for o in wanted]
    refused = [text for old, new in zip(stored, wanted, strict=True) if old for text in frozen_changes(old, new)]
    if refused:
        way_out = "undo the change, or run the changed job in another --workdir with another checkpoint uri"
        raise Refused("Immutable", "\n".join(["refused", *(f"  {text}" for text in refused), way_out]))
    applied = [await _store(cluster, old, new) for old, new in zip(stored, wanted, strict=True)]
    return next(o for o in applied if o["kind"] == "TrainingJob")


def frozen_changes(old: Manifest, new: Manifest) -> list[str]:
    """Returns a sentence for each field that differs and must not.

    Between two runs there are no pods, as in a suspended job.
    """
    before = copy.deepcopy(old)
    if new["kind"] == "TrainingJob":
        before["spec"]["suspend"] = True
    return [f"{new['kind']} {new['metadata']['name']}: {fault.text}" for fault in check(new, before)]


async def _store(cluster: LocalCluster, old: Manifest | None, new: Manifest) -> Manifest:
    if old is None:
        return await cluster.create(new)
    same = all(old.get(part) == new.get(part) for part in _CONTENT) and _notes(old) == _notes(new)
    return old if same else await cluster.replace(new)


def _in_namespace(manifest: Manifest) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": NAMESPACE, "annotations": _notes(manifest)}}


def _notes(manifest: Manifest) -> dict[str, str]:
    """Returns the user's annotations; one that an earlier run has set (--until-step) is dropped."""
    notes: dict[str, str] = manifest["metadata"].get("annotations") or {}
    return notes
