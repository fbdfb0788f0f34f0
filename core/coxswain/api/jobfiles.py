"""The user's files as checked objects: what a run on this machine may start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coxswain.api.field_errors import FieldError
from coxswain.api.load import Document, load_documents
from coxswain.api.overrides import overridden
from coxswain.api.resolve import resolve
from coxswain.api.validate import defaulted, repeated_names, validate
from coxswain.config import JobConfig
from coxswain.errors import Refused

Manifest = dict[str, Any]

_OURS = ("DataSource", "DataMix", "ParallelismPolicy", "TrainingJob")


def load_run(files: list[Path], settings: Sequence[str] = ()) -> list[Manifest]:
    """Loads one TrainingJob and its references, with defaults. Raises Refused with every fault.

    `settings`: fields of the job, as coxswain.api.overrides takes them.
    """
    documents, faults = load_documents(files)
    if settings:
        documents = [_with_settings(d, settings) for d in documents]
    faults = [*faults, *validate(documents)] or _repeated(documents)
    if not faults:
        objects = [defaulted(d.manifest) if d.identity[0] in _OURS else d.manifest for d in documents]
        faults = _unresolved(_only_job(objects), objects)
    if faults:
        raise Refused("Invalid", "\n".join(["refused", *(_line(f) for f in faults)]))
    return objects


def _with_settings(document: Document, settings: Sequence[str]) -> Document:
    is_job = document.identity[0] == "TrainingJob"
    return replace(document, manifest=overridden(document.manifest, settings)) if is_job else document


def load_config(files: list[Path]) -> JobConfig:
    """The resolved job of such files. Raises Refused as `load_run` does."""
    objects = load_run(files)
    found = _resolved(_only_job(objects), objects)
    assert isinstance(found, JobConfig), "load_run has refused every fault"
    return found


def _repeated(documents: list[Document]) -> list[FieldError]:
    """Objects of one kind and name in different namespaces, of which a run knows one only."""
    message = "{} is in {}, too, and a run knows no namespaces"
    return repeated_names(documents, lambda d: d.identity[::2], message)


def _only_job(objects: list[Manifest]) -> Manifest:
    jobs = [o for o in objects if o["kind"] == "TrainingJob"]
    if len(jobs) != 1:
        names = ", ".join(o["metadata"]["name"] for o in jobs) or "none"
        way_out = "take the others out of the files" if jobs else "name a file that holds it, or write it"
        message = f"a run has exactly one TrainingJob; the files hold {len(jobs)} ({names}); {way_out}"
        raise Refused("OneJob", message)
    [job] = jobs
    return job


def _unresolved(job: Manifest, objects: list[Manifest]) -> list[FieldError]:
    """On a cluster a missing reference may still come; here the files are all there is."""
    found = _resolved(job, objects)
    return found if isinstance(found, list) else []


def _resolved(job: Manifest, objects: list[Manifest]) -> JobConfig | list[FieldError]:
    of = {kind: [o for o in objects if o["kind"] == kind] for kind in _OURS}
    return resolve(job, of["DataSource"], of["DataMix"], of["ParallelismPolicy"], uid="")


def _line(fault: FieldError) -> str:
    place = f"{fault.file}, document {fault.document}" if fault.document else fault.file
    return "  " + ": ".join(part for part in (place, fault.text) if part)
