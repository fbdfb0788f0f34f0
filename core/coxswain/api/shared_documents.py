"""Entries of a mix that read the same documents, where the job evaluates: one would train on what another holds out."""

from __future__ import annotations

from coxswain.api.datamix import DataMixSpec, MixSource
from coxswain.api.datasource import DataSourceSpec
from coxswain.api.field_errors import FieldError
from coxswain.config import WITHOUT_TEXT_FIELD

Documents = tuple[str, ...]
"""What says which documents an entry reads, and what of them: equal for the same ones."""


def shared_documents(mix: DataMixSpec, place: str, found: dict[str, DataSourceSpec]) -> list[FieldError]:
    """A fault for each set of entries that share documents. `found`: the DataSources that exist, by name.

    Sources whose folders or globs overlap otherwise are not seen: that would need their objects.
    """
    sharing: dict[Documents, list[MixSource]] = {}
    for entry in mix.sources:
        sharing.setdefault(_documents(entry, found), []).append(entry)
    return [_fault(entries, place) for entries in sharing.values() if len(entries) > 1]


def _documents(entry: MixSource, found: dict[str, DataSourceSpec]) -> Documents:
    name = entry.source_ref.name
    if (source := found.get(name)) is None:
        return (name,)
    server = source.endpoint.url.rstrip("/") if source.endpoint else ""  # the provider's own, whatever region is named
    field = "text" if source.format in WITHOUT_TEXT_FIELD else source.text_field
    return server, source.uri.rstrip("/"), source.include, field


def _fault(entries: list[MixSource], place: str) -> FieldError:
    said = ", ".join(f"{entry.name} (DataSource {entry.source_ref.name})" for entry in entries)
    message = (
        f"these sources read the same documents, so evaluation would not be of documents that no pass trains on: {said}"
    )
    way_out = "mix the documents once, with the weights added up, or remove spec.evaluation"
    return FieldError(f"{place}.sources", message, way_out=way_out, reason="DocumentsShared")
