"""What a caller sends in a query or a header, read by its kind. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


class BadQuery(Exception):
    """A missing field, or a value of another kind: answered 400, as the caller's fault. Names field, value, what is allowed."""


def text(values: Mapping[str, str], field: str) -> str:
    """Raises BadQuery: the field is missing."""
    return _read(values, field, None, str, lambda _: True, "a text")


def whole(values: Mapping[str, str], field: str, default: int | None = None) -> int:
    """`default`: of a missing field; None: it must be there. Raises BadQuery."""
    return _read(values, field, default, int, lambda value: value >= 0, "a whole number from 0 on")


def seconds(values: Mapping[str, str], field: str, default: float | None = None) -> float:
    """`default`: of a missing field; None: it must be there. Raises BadQuery, also for nan."""
    return _read(values, field, default, float, lambda value: value >= 0, "a number of seconds from 0 on")


def _read(
    values: Mapping[str, str], field: str, default: T | None, kind: Callable[[str], T], allows: Callable[[T], bool], allowed: str
) -> T:  # fmt: skip
    if field not in values:
        if default is None:
            raise BadQuery(f"{field} is missing; use {allowed}")
        return default
    try:
        found = kind(values[field])
        if allows(found):
            return found
    except ValueError:
        pass
    raise BadQuery(f"{field} is {values[field][:80]!r}; use {allowed}")
