"""YAML files to manifests, with faults that say file, document, line and column."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from coxswain.api.crd import schema_of
from coxswain.api.field_errors import FieldError, similar
from coxswain.api.json_documents import json_documents
from coxswain.api.json_values import check_values
from coxswain.api.kinds import BY_NAME
from coxswain.api.schema import whole_numbers
from coxswain.api.yaml_loader import YamlLoader
from coxswain.names import API_VERSION
from coxswain.uris import file_path, file_uri

Manifest = dict[str, Any]
STDIN = Path("-")
MAX_BYTES = 3_000_000  # what etcd takes, twice
MAX_NODES = 100_000  # of a document with its aliases written out
# What a local run needs besides our kinds: the Secrets of endpoints.
_FOREIGN = {("v1", "Secret")}
_LISTS = {"List", *(f"{kind}List" for kind in BY_NAME)}
_ALLOWED_VALUES = "use one of the allowed values"
# What PyYAML raises for an explicit tag on a word that is none of it: `!!bool maybe`, `!!timestamp soon`, `!!int ''`.
_CONSTRUCTOR_ERRORS = (ValueError, LookupError, AttributeError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Document:
    """One object and where it came from; `number` counts the documents of the file from 1, and items of a List as such."""

    file: str
    number: int
    manifest: Manifest

    @property
    def identity(self) -> tuple[str, str, str]:
        """(kind, namespace, name). Null and empty are absent."""
        metadata = self.manifest.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        return str(self.manifest["kind"]), str(metadata.get("namespace") or "default"), str(metadata.get("name") or "")


def load_documents(paths: Iterable[Path]) -> tuple[list[Document], list[FieldError]]:
    """All objects of the files, and every fault that keeps one from being an object of ours.

    Relative uris (`file:./corpus`) become absolute ones, from the folder of their file: a convenience of local runs.
    """
    documents: list[Document] = []
    faults: list[FieldError] = []
    for path in paths:
        for found in _read(path):
            if isinstance(found, Document):
                documents.append(found)
            else:
                faults.append(found)
    return documents, faults


def load_value(text: str) -> Any:
    """One value of YAML. Raises yaml.YAMLError."""
    try:
        return yaml.load(text, Loader=YamlLoader)
    except (*_CONSTRUCTOR_ERRORS, RecursionError) as error:
        raise yaml.YAMLError(str(error)) from error


def _read(path: Path) -> Iterator[Document | FieldError]:
    try:
        data = _bytes(path)
        if len(data) > MAX_BYTES:
            size = f"more than {MAX_BYTES}"
            yield FieldError("", "the file is too large", size, f"at most {MAX_BYTES} bytes", file=str(path))
            return
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason, way_out = _unreadable(error)
        yield FieldError("", f"cannot read the file: {reason}", way_out=way_out, file=str(path))
        return
    yield from _parse(path, text)


def _unreadable(error: OSError | UnicodeDecodeError) -> tuple[str, str]:
    """Why, and the way out."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text", "save it as UTF-8, or name a readable YAML file"
    return str(error.strerror), "name a readable YAML file"


def _bytes(path: Path) -> bytes:
    """At most one byte more than is allowed. `-` is standard input."""
    if path == STDIN:
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _parse(path: Path, text: str) -> Iterator[Document | FieldError]:
    """The documents up to the first that is not YAML: what follows it cannot be separated."""
    number = 0
    try:
        for document in json_documents(text) or yaml.load_all(text, Loader=YamlLoader):
            for value in _items(document):
                number += 1
                if value is not None:
                    yield from _document(path, number, value)
    except (yaml.YAMLError, *_CONSTRUCTOR_ERRORS, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        deep = "lists and mappings are nested too deeply" if isinstance(error, RecursionError) else ""
        problem = deep or getattr(error, "problem", None) or str(error).partition("\n")[0]
        yield FieldError(
            "", f"malformed YAML{where}: {problem}", way_out="correct the YAML", file=str(path), document=number + 1
        )


def _items(document: Any) -> list[Any]:
    """The objects of a list, as `kubectl get --output yaml` writes it and `kubectl apply` takes it; else the document itself."""
    if not isinstance(document, dict) or "items" not in document or _nodes(document, {}) > MAX_NODES:
        return [document]
    kind, items = str(document.get("kind", "")), document["items"]
    if kind not in _LISTS or not isinstance(items, list | None):
        return [document]
    return items or [None]


def _document(path: Path, number: int, value: Any) -> Iterator[Document | FieldError]:
    faults = _oversized(value) or list(check_values(value, schema_of(value))) or _unknown(value)
    if faults:
        yield from (replace(fault, file=str(path), document=number) for fault in faults)
    else:
        numbers = whole_numbers(schema_of(value), value)
        yield Document(str(path), number, absolute(numbers, path.resolve().parent))


def _oversized(value: Any) -> list[FieldError]:
    """Why the value cannot be written out: a few aliases of aliases make billions of nodes, or a circle."""
    if _nodes(value, {}) <= MAX_NODES:
        return []
    message = "the document is too large with its aliases written out"
    return [FieldError("", message, "", f"at most {MAX_NODES} values, and no circles", "write it with fewer aliases")]


def _nodes(value: Any, known: dict[int, int]) -> int:
    """How many values a tree has, each shared part counted wherever it stands."""
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        known[id(value)] = MAX_NODES + 1  # stands until it is known better: a circle never is
        members = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_nodes(member, known) for member in members)
    return known[id(value)]


def _unknown(value: Any) -> list[FieldError]:
    """Why the value is no object of ours."""
    if not isinstance(value, dict):
        message = "a document must be a mapping with apiVersion, kind, metadata and spec"
        return [FieldError("", message, type(value).__name__, "a mapping", "write these four")]
    version, kind = str(value.get("apiVersion", "")), str(value.get("kind", ""))
    if (version, kind) in _FOREIGN:
        return []
    if kind not in BY_NAME:
        way_out = similar(kind, list(BY_NAME)) or _ALLOWED_VALUES
        return [FieldError("kind", f"unknown kind {kind!r}", kind, ", ".join(BY_NAME), way_out)]
    if version != API_VERSION:
        message = f"unknown version {version!r} of kind {kind}"
        return [FieldError("apiVersion", message, version, API_VERSION, _ALLOWED_VALUES)]
    return []


def absolute(value: Any, folder: Path, key: str = "") -> Any:
    """The value with `file:relative` uris made absolute."""
    if isinstance(value, dict):
        return {name: absolute(member, folder, name) for name, member in value.items()}
    if isinstance(value, list):
        return [absolute(item, folder) for item in value]
    if key == "uri" and isinstance(value, str) and value.startswith("file:") and not value.startswith("file:/"):
        path, slash = folder / file_path(value), "/" if value.endswith("/") else ""
        # Path.resolve raises for a circle of links. What holds a NUL is no path: it stays, and is refused for its form.
        return value if "\0" in str(path) else f"{file_uri(os.path.realpath(path))}{slash}"
    return value
