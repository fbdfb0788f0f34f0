"""Offline validation: every fault at once, where the API server reports one layer at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from coxswain.api.cel_rules import check_rules
from coxswain.api.crd import object_schema
from coxswain.api.field_errors import FieldError, parse
from coxswain.api.json_values import check_values
from coxswain.api.kinds import BY_NAME, Kind
from coxswain.api.load import Document
from coxswain.api.pod_template import template_faults
from coxswain.api.resolve import resolve
from coxswain.api.schema import Schema, repeated, with_defaults

# Found between objects that are both in the files. A missing object is no fault: it may be on the cluster, or come later.
_BETWEEN = ("TokenizerMismatch", "CapacityTooSmall")


def validate(documents: Sequence[Document]) -> list[FieldError]:
    """Every fault of each document, then of repeated names; and of the references between them, once all else is right."""
    faults = [fault for document in documents for fault in _place(document, check(document.manifest))]
    faults += _repeated(documents)
    if not faults:
        faults += _between(documents)
    return faults


def check(manifest: dict[str, Any], old: dict[str, Any] | None = None) -> list[FieldError]:
    """Every fault within one object of ours; with `old`, also those of the change from it. Defaults need not be in place.

    Values that JSON cannot hold are reported alone: neither the schema nor the rules are defined for them.
    """
    if faults := list(check_values(manifest)):
        return faults
    kind = BY_NAME.get(manifest.get("kind", ""))
    if kind is None:
        return []
    shape = _shape(kind, manifest)
    whole = defaulted(manifest)
    before = defaulted(old) if old is not None else None
    return shape + check_rules(kind.name, whole, before, well_shaped=not shape)


def defaulted(manifest: dict[str, Any]) -> dict[str, Any]:
    """The object as the API server would hold it."""
    result: dict[str, Any] = with_defaults(_schema(manifest["kind"]), manifest)
    return result


@lru_cache(maxsize=len(BY_NAME))
def _schema(kind: str) -> Schema:
    return object_schema(BY_NAME[kind])


def _shape(kind: Kind, manifest: dict[str, Any]) -> list[FieldError]:
    known = ("apiVersion", "kind", "metadata", "spec", "status")
    faults = [
        FieldError(name, "unknown field", name, ", ".join(known), f"remove {name}")
        for name in manifest
        if name not in known
    ]
    if not isinstance(manifest.get("metadata"), dict) or not isinstance(manifest["metadata"].get("name"), str):
        faults.append(FieldError("metadata.name", "required, but missing", way_out="give the object a name"))
    faults += parse(kind.spec, manifest["spec"], "spec")[1] if "spec" in manifest else [_missing_spec()]
    faults += template_faults(manifest.get("spec")) if kind.name == "TrainingJob" else []
    faults += parse(kind.status, manifest["status"], "status")[1] if "status" in manifest else []
    return faults + [
        FieldError(path, f"{key!r} appears twice", key, way_out="give every item a name of its own")
        for path, key in repeated(_schema(kind.name), manifest)
    ]


def _missing_spec() -> FieldError:
    return FieldError("spec", "required, but missing", way_out="add spec")


def _place(document: Document, faults: Iterable[FieldError]) -> list[FieldError]:
    return [replace(fault, file=document.file, document=document.number) for fault in faults]


def _repeated(documents: Sequence[Document]) -> list[FieldError]:
    """Objects of the same kind and name: the later would replace the earlier."""
    faults: list[FieldError] = []
    seen: dict[tuple[str, str, str], Document] = {}
    for document in documents:
        first = seen.setdefault(document.identity, document)
        if first is not document:
            kind, _, name = document.identity
            message = f"{kind} {name!r} is already in {first.file}, document {first.number}"
            fault = FieldError("metadata.name", message, name, way_out="rename or remove one of the two")
            faults += _place(document, [fault])
    return faults


def _between(documents: Sequence[Document]) -> list[FieldError]:
    """Faults between a job and what it refers to, as far as that is in the files."""
    faults: list[FieldError] = []
    for document in documents:
        if document.identity[0] == "TrainingJob":
            kinds = ("DataSource", "DataMix", "ParallelismPolicy")
            others = [
                [d.manifest for d in documents if d.identity[:2] == (kind, document.identity[1])] for kind in kinds
            ]
            resolved = resolve(document.manifest, others[0], others[1], others[2], uid="")
            found = resolved if isinstance(resolved, list) else []
            faults += _place(document, [fault for fault in found if fault.reason in _BETWEEN])
    return faults
