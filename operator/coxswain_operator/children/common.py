"""The metadata of all children: names, labels, owner, and the hash of their content."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from coxswain.names import API_VERSION, LABEL_JOB, LABEL_JOB_UID
from coxswain_operator.views import Manifest

CONTENT = "coxswain.dev/content"  # annotation: hash of the child's body, which shows a change


def labels_of(job: Manifest) -> dict[str, str]:
    """Labels of every child. Selectors use the uid: a job of the same name may have existed before."""
    meta = job["metadata"]
    return {
        "app.kubernetes.io/name": "coxswain",
        "app.kubernetes.io/part-of": "coxswain",
        "app.kubernetes.io/managed-by": "coxswain-operator",
        "app.kubernetes.io/instance": meta["name"],
        LABEL_JOB: meta["name"],
        LABEL_JOB_UID: meta["uid"],
    }


def child(job: Manifest, api_version: str, kind: str, name: str, body: dict[str, Any]) -> Manifest:
    """A manifest owned by the job. `body`: all fields but kind and metadata."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
    metadata = {"name": name, **owner_of(job), "annotations": {CONTENT: digest}}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def owner_of(job: Manifest) -> dict[str, Any]:
    """Namespace, labels and owner in every child's metadata."""
    meta = job["metadata"]
    owner = {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {"namespace": meta["namespace"], "labels": labels_of(job), "ownerReferences": [owner]}


def controller_of(manifest: Manifest) -> dict[str, Any]:
    """The reference to the object's controller; empty without one."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return next((o for o in owners if o.get("controller")), {})


def selector(job: Manifest) -> dict[str, Any]:
    return {"matchLabels": {LABEL_JOB_UID: job["metadata"]["uid"]}}
