"""Faults of a Secret, which a local run takes beside our kinds: those that an API server finds."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from coxswain.api.field_errors import FieldError
from coxswain.api.metadata_faults import metadata_faults


def secret_faults(manifest: dict[str, Any]) -> list[FieldError]:
    """Of metadata, data and stringData. No message shows a value: it is secret."""
    values = [fault for field in ("data", "stringData") for fault in _values(field, manifest.get(field))]
    return [*metadata_faults("Secret", manifest), *values]


def _values(field: str, given: Any) -> list[FieldError]:
    if given is None:
        return []
    if not isinstance(given, dict):
        return [FieldError(field, "its value is not a mapping", allowed="a mapping", way_out="write a mapping")]
    return [fault for key, value in given.items() for fault in _value(f"{field}.{key}", value, field == "data")]


def _value(path: str, value: Any, encoded: bool) -> list[FieldError]:
    if not isinstance(value, str):
        return [FieldError(path, "its value is not a string", allowed="a string", way_out="put the value in quotes")]
    if encoded and not _is_base64(value):
        return [
            FieldError(path, "its value is not base64", allowed="base64", way_out="write it under stringData as it is")
        ]
    return []


def _is_base64(text: str) -> bool:
    """Lines may be broken, as for an API server."""
    try:
        base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True
