"""Offline validation: every fault at once, where the API server reports one layer at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from coxswain.api.auto_faults import TOO_SMALL
from coxswain.api.cel_rules import check_rules
from coxswain.api.crd import object_schema, schema_of
from coxswain.api.field_errors import UNKNOWN_FIELD, FieldError, parse
from coxswain.api.json_values import check_values
from coxswain.api.kinds import BY_NAME, Kind
from coxswain.api.layout_faults import layout_faults
from coxswain.api.load import Document
from coxswain.api.metadata_faults import metadata_faults
from coxswain.api.pod_template import template_faults
from coxswain.api.resolve import resolve
from coxswain.api.schema import repeated, with_defaults
from coxswain.api.secret_faults import secret_faults
from coxswain.api.trainingjob import TrainingJobSpec

# Found between objects that are both in the files. A missing object is no fault: it may be on the cluster, or come later.
_BETWEEN = (
    "TokenizerMismatch", "CapacityTooSmall", "LayoutInvalid", "CustomModelNotSplit", "MemoryTooSmall",
    "GroupMatchesNothing", "MuonUnsupported", "DocumentsShared",
)  # fmt: skip
_MISSING = {"SourceNotFound": "DataSource", "MixNotFound": "DataMix", "PolicyNotFound": "ParallelismPolicy"}


def validate(documents: Sequence[Document]) -> list[FieldError]:
    """Every fault of each document, then of repeated names; and of the references between them, once all else is right."""
    faults = [fault for document in documents for fault in _place(document, check(document.manifest))]
    faults += _repeated(documents)
    if not faults:
        faults += _between(documents)
    return faults


def check(manifest: dict[str, Any], old: dict[str, Any] | None = None) -> list[FieldError]:
    """Every fault of one object, ours or a Secret; with `old`, also of the change from it. Defaults need not be in place.

    Values that JSON cannot hold are reported alone: neither the schema nor the rules are defined for them.
    """
    if faults := list(check_values(manifest, schema_of(manifest))):
        return faults
    kind = BY_NAME.get(manifest.get("kind", ""))
    if kind is None:
        return secret_faults(manifest) if manifest.get("kind") == "Secret" else []
    shape = _shape(kind, manifest)
    whole = defaulted(manifest)
    before = defaulted(old) if old is not None else None
    wrong = {fault.path for fault in shape}
    faults = shape + check_rules(kind.name, whole, before, well_shaped=not shape, wrong=wrong)
    return faults + (_inline_layout(manifest, faults) if kind.name == "TrainingJob" and not shape else [])


def _inline_layout(manifest: dict[str, Any], known: list[FieldError]) -> list[FieldError]:
    """What a policy in line asks of the job's model and trainers, beyond what rules say.

    The policy of another object is judged once that is known.
    """
    spec, _ = parse(TrainingJobSpec, manifest["spec"], "spec")
    assert isinstance(spec, TrainingJobSpec)
    models = [given for given in (spec.model.preset, spec.model.config, spec.model.custom) if given is not None]
    if spec.parallelism is None or len(models) != 1:  # rules say that there must be one
        return []
    said = {fault.path: fault.message for fault in known}
    faults = layout_faults(spec, spec.parallelism, "spec.parallelism")
    return [f for f in faults if said.get(f.path) != f.message and not (f.path in said and f.reason == TOO_SMALL)]


def defaulted(manifest: dict[str, Any]) -> dict[str, Any]:
    """The object as the API server would hold it."""
    result: dict[str, Any] = with_defaults(object_schema(BY_NAME[manifest["kind"]]), manifest)
    return result


def _shape(kind: Kind, manifest: dict[str, Any]) -> list[FieldError]:
    known = ("apiVersion", "kind", "metadata", "spec", *(("status",) if kind.status else ()))
    faults = [
        FieldError(name, UNKNOWN_FIELD, name, ", ".join(known), f"remove {name}")
        for name in manifest
        if name not in known
    ]
    faults += metadata_faults(kind.name, manifest, kind.namespaced)
    faults += parse(kind.spec, manifest["spec"], "spec")[1] if "spec" in manifest else [_missing_spec()]
    faults += template_faults(manifest.get("spec")) if kind.name == "TrainingJob" else []
    given = manifest.get("status")  # null is absent
    faults += parse(kind.status, given, "status")[1] if kind.status and given is not None else []
    return faults + [
        FieldError(path, f"{key!r} appears twice", key, way_out="give every item a name of its own")
        for path, key in repeated(object_schema(kind), manifest)
    ]


def _missing_spec() -> FieldError:
    return FieldError("spec", "required, but missing", way_out="add spec")


def _place(document: Document, faults: Iterable[FieldError]) -> list[FieldError]:
    return [replace(fault, file=document.file, document=document.number) for fault in faults]


def _repeated(documents: Sequence[Document]) -> list[FieldError]:
    """Objects of the same kind and name: the later would replace the earlier."""
    return repeated_names(documents, lambda d: d.identity, "{} is already in {}")


def repeated_names(
    documents: Sequence[Document], same: Callable[[Document], Hashable], message: str
) -> list[FieldError]:
    """A fault of each document that is the `same` as an earlier one. `message` takes the object, and where the earlier one is."""
    faults: list[FieldError] = []
    seen: dict[Hashable, Document] = {}
    for document in documents:
        first = seen.setdefault(same(document), document)
        if first is not document:
            kind, _, name = document.identity
            said = message.format(f"{kind} {name!r}", f"{first.file}, document {first.number}")
            fault = FieldError("metadata.name", said, name, way_out="rename or remove one of the two")
            faults += _place(document, [fault])
    return faults


def missing(documents: Sequence[Document]) -> list[FieldError]:
    """References of jobs to objects that are not in the files, or only in other namespaces, which `cox run` does not know."""
    return [_absent(documents, fault) for fault in _resolution(documents, tuple(_MISSING))]


def _absent(documents: Sequence[Document], fault: FieldError) -> FieldError:
    wanted = (_MISSING[fault.reason], fault.value)
    others = ", ".join(sorted(d.identity[1] for d in documents if d.identity[::2] == wanted))
    place, way_out = "in these files", "`cox run` needs it there, a cluster may have it"
    if others:
        place, way_out = "in the job's namespace", f"`cox run` takes that of {others}, a cluster needs it in the job's"
    return replace(fault, message=f"{fault.message} {place}", way_out=way_out)


def _between(documents: Sequence[Document]) -> list[FieldError]:
    """Faults between a job and what it refers to, as far as that is in the files."""
    return _resolution(documents, _BETWEEN)


def _resolution(documents: Sequence[Document], reasons: tuple[str, ...]) -> list[FieldError]:
    faults: list[FieldError] = []
    for document in documents:
        if document.identity[0] == "TrainingJob":
            kinds = ("DataSource", "DataMix", "ParallelismPolicy")
            others = [
                [d.manifest for d in documents if d.identity[:2] == (kind, document.identity[1])] for kind in kinds
            ]
            resolved = resolve(document.manifest, others[0], others[1], others[2], uid="")
            found = resolved if isinstance(resolved, list) else []
            faults += _place(document, [fault for fault in found if fault.reason in reasons])
    return faults
