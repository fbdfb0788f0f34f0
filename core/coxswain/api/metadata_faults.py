"""Faults of an object's metadata that an API server finds: neither the schema nor the rules say them."""

from __future__ import annotations

import re
from typing import Any

from coxswain.api.common import LABEL, LABEL_LENGTH, NAME_LENGTH, PATTERNS, SUBDOMAIN
from coxswain.api.field_errors import UNKNOWN_FIELD, FieldError, nearest, quoted, shorten
from coxswain.api.label_faults import is_domain, key_faults, value_faults

_FIELDS = (
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName",
    "generation", "labels", "managedFields", "name", "namespace", "ownerReferences", "resourceVersion", "selfLink", "uid",
)  # fmt: skip


def metadata_faults(kind: str, manifest: dict[str, Any], namespaced: bool = True) -> list[FieldError]:
    """Of name, namespace, labels and annotations. Metadata that is absent or null lacks a name."""
    metadata = manifest.get("metadata")
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        return [_not_mapping("metadata", metadata, "write metadata: {name: NAME}")]
    texts = [fault for field in ("labels", "annotations") for fault in _texts(field, metadata.get(field))]
    own = [
        *(_generated(metadata) or _name(kind, metadata.get("name"))),
        *_namespace(kind, metadata.get("namespace"), namespaced),
    ]
    return [*own, *texts, *map(_unknown, (name for name in metadata if name not in _FIELDS))]


def _unknown(name: str) -> FieldError:
    allowed = "name, namespace, labels, annotations, and what a cluster writes"
    return FieldError(f"metadata.{name}", UNKNOWN_FIELD, name, allowed, nearest(name, _FIELDS))


def _generated(metadata: dict[str, Any]) -> list[FieldError]:
    """Of a prefix in the place of a name: a repeated command would not find the object, so `kubectl apply` refuses it too."""
    if metadata.get("name") or not metadata.get("generateName"):
        return []
    prefix = metadata["generateName"]
    message = f"{quoted(prefix)} is no name, and only `kubectl create` makes one of it"
    return [FieldError("metadata.generateName", message, shorten(prefix), way_out="write metadata.name instead")]


def _name(kind: str, name: Any) -> list[FieldError]:
    """Of a TrainingJob's name a rule says more: its pods are named after it."""
    if name is None:
        return [FieldError("metadata.name", "required, but missing", way_out="give the object a name")]
    if not isinstance(name, str):
        return [_not_string("metadata.name", name)]
    if not name:
        return [FieldError("metadata.name", "required, but empty", way_out="give the object a name")]
    if kind == "TrainingJob" or is_domain(name):
        return []
    allowed = f"{PATTERNS[SUBDOMAIN]}, at most {NAME_LENGTH}"
    return [_wrong_form("metadata.name", name, allowed, "rename the object")]


def _namespace(kind: str, given: Any, namespaced: bool) -> list[FieldError]:
    """A cluster's own objects have none. Empty: that of the command."""
    path = "metadata.namespace"
    if given is None:
        return []
    if not namespaced:
        message = f"a {kind} belongs to the cluster and has no namespace"
        return [FieldError(path, message, shorten(given), way_out="remove metadata.namespace")]
    if not isinstance(given, str):
        return [_not_string(path, given)]
    if not given or (len(given) <= LABEL_LENGTH and re.fullmatch(LABEL, given)):
        return []
    allowed = f"{PATTERNS[LABEL]}, at most {LABEL_LENGTH}"
    return [_wrong_form(path, given, allowed, "name a namespace of the cluster, or remove metadata.namespace")]


def _texts(field: str, given: Any) -> list[FieldError]:
    """Of a mapping of strings to strings."""
    path = f"metadata.{field}"
    if given is None:
        return []
    if not isinstance(given, dict):
        return [_not_mapping(path, given, "write a mapping")]
    texts = {key: value for key, value in given.items() if isinstance(value, str)}
    others = [_not_string(f"{path}.{key}", value) for key, value in given.items() if key not in texts]
    return [*others, *key_faults(field, path, given), *value_faults(field, path, texts)]


def _not_mapping(path: str, value: Any, way_out: str) -> FieldError:
    return FieldError(path, f"{quoted(value)} is not a mapping", shorten(value), "a mapping", way_out)


def _not_string(path: str, value: Any) -> FieldError:
    return FieldError(path, f"{shorten(value)} is not a string", shorten(value), "a string", "put the value in quotes")


def _wrong_form(path: str, value: str, allowed: str, way_out: str) -> FieldError:
    message = f"{shorten(value)!r} has not the form that is needed"
    return FieldError(path, message, shorten(value), allowed, way_out)
