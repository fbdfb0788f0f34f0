"""Faults of labels and annotations that an API server finds: of an object's own metadata, and of a pod template's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from coxswain.api.common import KEY_NAME, LABEL_LENGTH, NAME_LENGTH, SUBDOMAIN
from coxswain.api.field_errors import FieldError, quoted, shorten

_MOST_BYTES = 1 << 18  # of all annotations of an object


def is_domain(text: str) -> bool:
    """Whether it is words with dots between, such as an object's name: no two dots in a row, and no - beside one."""
    return len(text) <= NAME_LENGTH and re.fullmatch(SUBDOMAIN, text) is not None


def key_faults(field: str, path: str, given: Mapping[str, Any]) -> Iterator[FieldError]:
    """`field`: labels or annotations, whose prefixes may have capitals."""
    for key in given:
        prefix, slash, name = key.rpartition("/")
        prefix = prefix if field == "labels" else prefix.lower()
        if not re.fullmatch(KEY_NAME, name) or (slash and not is_domain(prefix)):
            allowed = f"a name, or PREFIX/NAME; a name has letters, digits and - _ . within, at most {LABEL_LENGTH}"
            yield FieldError(path, f"{quoted(key)} is no valid key", shorten(key), allowed, "correct the key")


def value_faults(field: str, path: str, given: Mapping[str, str]) -> Iterator[FieldError]:
    """Of the form of labels' values, and of the size of all annotations."""
    for key, value in given.items() if field == "labels" else ():
        if value and not re.fullmatch(KEY_NAME, value):
            message = f"{quoted(value)} has not the form that is needed"
            allowed = f"letters and digits, with - _ . within, at most {LABEL_LENGTH}"
            yield FieldError(f"{path}.{key}", message, shorten(value), allowed, "correct it, or make it an annotation")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in given.items())
    if field == "annotations" and size > _MOST_BYTES:
        message = f"{size} bytes in all annotations is out of bounds"
        yield FieldError(path, message, str(size), f"at most {_MOST_BYTES} bytes", "shorten them")
