"""When an edit of a field takes effect: stated once, at the field, for schemas, reference pages, and what a job pins."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from coxswain.api.common import Model


class Effect(Enum):
    """Annotates a field, and all below it that have no effect of their own."""

    AT_ONCE = "at once"
    UNCOMMITTED = "at the first uncommitted step"
    NEXT_ATTEMPT = "at the next attempt"
    SUSPENDED = "at the next attempt; refused unless the job is suspended"
    NEVER = "never: refused"

    @property
    def sentence(self) -> str:
        """The end of the field's description."""
        return f"An edit takes effect {self.value}."

    @property
    def is_pinned(self) -> bool:
        """Whether an attempt keeps the value that it began with."""
        return self not in (Effect.AT_ONCE, Effect.UNCOMMITTED)


def effects(
    model: type[Model], inherited: Effect | None = None, under: str = ""
) -> Iterator[tuple[str, Effect | None]]:
    """Every field with its path, such as `sources[].weight`. None: neither the field nor one above it says it."""
    for member in _members(model, inherited):
        path = f"{under}.{member.name}".removeprefix(".")
        yield path, member.effect
        if member.model is not None:
            yield from effects(member.model, member.effect, path + member.items)


def stated(model: type[Model], under: str = "") -> Iterator[tuple[str, Effect]]:
    """The fields that say it themselves."""
    for member in _members(model, None):
        path = f"{under}.{member.name}".removeprefix(".")
        if member.effect is not None:
            yield path, member.effect
        if member.model is not None:
            yield from stated(member.model, path + member.items)


def pinned_part(model: type[Model], spec: Any, inherited: Effect | None = None) -> Any:
    """The spec without the fields whose edits reach a running attempt. What has a wrong shape stays as it is."""
    if not isinstance(spec, dict):
        return spec
    found: dict[str, Any] = {}
    for member in _members(model, inherited):
        value = spec.get(member.name)
        if value is None or (member.effect is not None and not member.effect.is_pinned):
            continue
        if member.model is not None and member.items and isinstance(value, list):
            value = [pinned_part(member.model, item, member.effect) for item in value]
        elif member.model is not None:
            value = pinned_part(member.model, value, member.effect)
        found[member.name] = value
    return found


@dataclass(frozen=True, slots=True)
class _Member:
    """One field. `model` is that of its values, or of their items; `items` is `[]` for a list."""

    name: str
    effect: Effect | None
    model: type[Model] | None
    items: str


@cache
def _members(model: type[Model], inherited: Effect | None) -> tuple[_Member, ...]:
    """Made once a process: an operator asks at every pass."""
    found = []
    for field in model.model_fields.values():
        own = next((m for m in field.metadata if isinstance(m, Effect)), inherited)
        inner, items = model_of(field.annotation)
        found.append(_Member(str(field.alias), own, inner, items))
    return tuple(found)


def model_of(annotation: Any) -> tuple[type[Model] | None, str]:
    """The model of a field's values, or of the items of its list, then with `[]`; None for other values."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return model_of(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return model_of(next(a for a in get_args(annotation) if a is not type(None)))
    if origin is list:
        return model_of(get_args(annotation)[0])[0], "[]"
    return (annotation, "") if isinstance(annotation, type) and issubclass(annotation, Model) else (None, "")
