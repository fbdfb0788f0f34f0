"""When an edit of a field takes effect: stated once, at the field, for schemas, reference pages, and what a job pins."""

from __future__ import annotations

import types
from collections.abc import Iterator
from enum import Enum
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
    for path, field_type, effect in _members(model, inherited, under):
        yield path, effect
        inner, many = _inner(field_type)
        if inner is not None:
            yield from effects(inner, effect, f"{path}[]" if many else path)


def stated(model: type[Model], under: str = "") -> Iterator[tuple[str, Effect]]:
    """The fields that say it themselves."""
    for path, field_type, effect in _members(model, None, under):
        if effect is not None:
            yield path, effect
        inner, many = _inner(field_type)
        if inner is not None:
            yield from stated(inner, f"{path}[]" if many else path)


def pinned_part(model: type[Model], spec: Any, inherited: Effect | None = None) -> Any:
    """The spec without the fields whose edits reach a running attempt. What has a wrong shape stays as it is."""
    if not isinstance(spec, dict):
        return spec
    found: dict[str, Any] = {}
    for name, field_type, effect in _members(model, inherited, ""):
        inner, many = _inner(field_type)
        value = spec.get(name)
        if value is None or (effect is not None and not effect.is_pinned):
            continue
        if inner is not None and many and isinstance(value, list):
            value = [pinned_part(inner, item, effect) for item in value]
        elif inner is not None:
            value = pinned_part(inner, value, effect)
        found[name] = value
    return found


def _members(model: type[Model], inherited: Effect | None, under: str) -> Iterator[tuple[str, Any, Effect | None]]:
    for field in model.model_fields.values():
        own = next((m for m in field.metadata if isinstance(m, Effect)), inherited)
        yield f"{under}.{field.alias}".removeprefix("."), field.annotation, own


def _inner(annotation: Any) -> tuple[type[Model] | None, bool]:
    """The model of a field's values, and whether the field is a list of them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _inner(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return _inner(next(a for a in get_args(annotation) if a is not type(None)))
    if origin is list:
        return _inner(get_args(annotation)[0])[0], True
    return (annotation, False) if isinstance(annotation, type) and issubclass(annotation, Model) else (None, False)
