"""Creates and updates the objects of the user's files in the work directory's cluster."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from coxswain.api.validate import check
from coxswain.errors import Refused
from coxswain.names import ANNOTATION_RETRY
from coxswain_operator.local import LocalCluster
from coxswain_operator.local.objects import encode_strings

Manifest = dict[str, Any]

NAMESPACE = "default"

_CONTENT = ("spec", "data")
_OF_USERS = ("name", "labels", "annotations")  # of metadata: the rest is the cluster's


@dataclass(frozen=True, slots=True)
class Applied:
    """The TrainingJob as stored, and what is new about it."""

    job: Manifest
    changed: bool = False  # any of the objects
    extended: bool = False  # its stop was raised


async def apply(cluster: LocalCluster, objects: list[Manifest]) -> Applied:
    """Stores all objects.

    Raises Refused for a second job, and naming every field that may not change once the job has trained.
    """
    wanted = [_in_namespace(o) for o in objects]
    await _check_alone(cluster, next(o["metadata"]["name"] for o in wanted if o["kind"] == "TrainingJob"))
    stored = [await cluster.get(o["kind"], NAMESPACE, o["metadata"]["name"]) for o in wanted]
    pairs = [(old, new) for old, new in zip(stored, wanted, strict=True) if old]
    refused = [text for old, new in pairs for text in _compared(cluster, old, new)]
    if refused and any(has_trained(old) for old, _ in pairs):
        raise Refused("Immutable", "\n".join(["refused", *(f"  {text}" for text in refused), _way_out(pairs)]))
    applied = [await _store(cluster, old, new) for old, new in zip(stored, wanted, strict=True)]
    job = next(o for o in applied if o["kind"] == "TrainingJob")
    changed = any(_content(old) != _content(new) for old, new in pairs) or len(pairs) < len(wanted)
    extended = any(old["kind"] == "TrainingJob" and old["spec"]["stop"] != new["spec"]["stop"] for old, new in pairs)
    return Applied(job, changed, extended)


def _way_out(pairs: list[tuple[Manifest, Manifest]]) -> str:
    """Where files name folders beside them, a folder that was moved is another one with the same checkpoints."""
    jobs = [pair for pair in pairs if pair[0]["kind"] == "TrainingJob"]
    moved = any(old["spec"]["checkpoint"]["uri"] != new["spec"]["checkpoint"]["uri"] for old, new in jobs)
    there = ": it resumes from the checkpoints at its checkpoint.uri, as of a folder that was moved"
    return f"undo the change, or run the changed job in another --workdir{there if moved else ' with another checkpoint uri'}"


async def _check_alone(cluster: LocalCluster, job: str) -> None:
    """One job a work directory: its steps, events and logs are in the same files. Those that are there already go on."""
    there = [o["metadata"]["name"] for o in await cluster.list("TrainingJob", NAMESPACE)]
    if there and job not in there:
        raise Refused(
            "WorkdirTaken",
            f"{cluster.workdir} holds TrainingJob {', '.join(there)}, not {job}; choose another --workdir",
        )


def _compared(cluster: LocalCluster, old: Manifest, new: Manifest) -> list[str]:
    try:
        return frozen_changes(old, new)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:  # of rules over another shape
        raise Refused(
            "CorruptObject",
            f"{cluster.path_of(old)} is no {old['kind']} ({type(error).__name__}: {error}); delete it, or start in another "
            "--workdir",
        ) from error


def frozen_changes(old: Manifest, new: Manifest) -> list[str]:
    """Returns a sentence for each field that differs and must not.

    Between two runs there are no pods, as in a suspended job.
    """
    before = suspended(old) if new["kind"] == "TrainingJob" else old
    return [f"{new['kind']} {new['metadata']['name']}: {fault.text}" for fault in check(new, before)]


def suspended(job: Manifest) -> Manifest:
    changed = copy.deepcopy(job)
    changed["spec"]["suspend"] = True
    return changed


def has_trained(job: Manifest) -> bool:
    """Whether a step or a checkpoint of this object, if it is a job, would be lost by a start from the beginning."""
    status = job.get("status", {})
    return "lastCheckpoint" in status or status.get("progress", {}).get("step", 0) > 0


async def _store(cluster: LocalCluster, old: Manifest | None, new: Manifest) -> Manifest:
    if old is None:
        return await cluster.create(new)
    same = _content(old) == _content(new) and _notes(old) == _notes(new)
    return old if same else await cluster.replace(new)


def _content(manifest: Manifest) -> list[Any]:
    return [manifest.get(part) for part in _CONTENT]


def _in_namespace(manifest: Manifest) -> Manifest:
    """The user's part of the object: what another cluster has written to it, as files of `kubectl get` show, holds there."""
    manifest = encode_strings({part: value for part, value in manifest.items() if part != "status"})
    metadata = {name: value for name, value in manifest["metadata"].items() if name in _OF_USERS}
    notes = {
        key: value for key, value in _notes(manifest).items() if key != ANNOTATION_RETRY
    }  # `--retry` asks for one here
    return {**manifest, "metadata": {**metadata, "namespace": NAMESPACE, "annotations": notes}}


def _notes(manifest: Manifest) -> dict[str, str]:
    """Returns the user's annotations; one that an earlier run has set (--until-step) is dropped."""
    notes: dict[str, str] = manifest["metadata"].get("annotations") or {}
    return notes
