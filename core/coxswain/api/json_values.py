"""Refuses values that JSON, and so the API server, cannot hold. Rules and schemas run on what passes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from coxswain.api.field_errors import FieldError, join_path, shorten
from coxswain.api.schema import Schema

_LEAST, _MOST = -(2**63), 2**63 - 1
_LONGEST = 2**300  # Python refuses to print integers of thousands of digits
_TYPES = "a mapping, list, string, number, true, false or null"


def check_values(value: Any, schema: Schema, location: tuple[str | int, ...] = ()) -> Iterator[FieldError]:
    """A fault for every key and value, at any depth, that no JSON object holds. A circle in the value has no end.

    `schema`: of the value, for the bounds that a message names; empty where none is known.
    """
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _check_key(key, join_path(location))
            of_member = schema.get("properties", {}).get(key, {})
            yield from check_values(member, of_member, (*location, _printable(key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from check_values(item, schema.get("items", {}), (*location, index))
    elif problem := _problem(value, schema):
        yield FieldError(join_path(location), problem[0], _printable(value), *problem[1:])


def _check_key(key: Any, path: str) -> Iterator[FieldError]:
    shown = _printable(key)
    if not isinstance(key, str):
        yield FieldError(path, f"key {shown} is not a string", shown, "a string", "put the key in quotes")
    elif problem := _problem(key, {}):
        yield FieldError(path, f"key {problem[0]}", shown, *problem[1:])


def _problem(value: Any, schema: Schema) -> tuple[str, str, str] | None:
    """Why a value other than a mapping or list is none of JSON's: (message, allowed, way out)."""
    shown = _printable(value)
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        allowed = f"{schema.get('minimum', _LEAST)} to {schema.get('maximum', _MOST)}"
        bounds = (f"{shown} is out of bounds", allowed, "write a number within the bounds")
        return None if _LEAST <= value <= _MOST else bounds
    if isinstance(value, float):
        number = "a finite number"
        return None if math.isfinite(value) else (f"{shown} is not {number}", number, f"write {number}")
    if isinstance(value, str):
        text = (f"'{shown}' is not Unicode text", "Unicode text", "remove the half surrogate pair")
        return None if _encodable(value) else text
    return f"a value of type {type(value).__name__} has no place in an object", _TYPES, "put the value in quotes"


def _encodable(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _printable(value: Any) -> str:
    """The value as a message shows it: shortened, and halves of surrogate pairs, which no encoding takes, escaped."""
    if isinstance(value, int) and abs(value) > _LONGEST:
        return "a number of some hundred digits"
    return shorten(value).encode("utf-8", "backslashreplace").decode()
