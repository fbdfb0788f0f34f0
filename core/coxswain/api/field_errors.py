"""FieldError: one fault of an object, with what is allowed and how to correct it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from coxswain.api.common import PATTERNS, Model
from coxswain.api.peer_names import fields_of

UNKNOWN_FIELD, UNSUPPORTED_VALUE = "unknown field", "unsupported value"  # how messages of these faults begin


@dataclass(frozen=True, slots=True)
class FieldError:
    """The value at `path` of the `document`-th document (from 1) of `file` is wrong.

    `reason` is the condition's reason.
    """

    path: str
    message: str
    value: str = ""
    allowed: str = ""
    way_out: str = ""
    file: str = ""
    document: int = 0
    reason: str = "Invalid"

    @property
    def text(self) -> str:
        """The whole fault as one sentence, without the place of the file."""
        allowed = f" (allowed: {self.allowed})" if self.allowed else ""
        way_out = f"; {self.way_out}" if self.way_out else ""
        return printable(": ".join(part for part in (self.path, f"{self.message}{allowed}{way_out}") if part))


def printable(text: str) -> str:
    """The text with control characters escaped: a key of a file would move the terminal's cursor, or set its title."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def join_path(location: Sequence[str | int]) -> str:
    """("spec", "sources", 0, "name") -> spec.sources[0].name, as the API server spells it."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def shorten(value: object, limit: int = 80) -> str:
    """A value as a person may want to see it again."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def quoted(value: object) -> str:
    """As `shorten`, a string in quotes: else '6' looks like the number."""
    return repr(shorten(value)) if isinstance(value, str) else shorten(value)


def parse(model: type[Model], value: object, under: str) -> tuple[Model | None, list[FieldError]]:
    """The value as a model, or every fault of its shape."""
    try:
        return model.model_validate(_present(value)), []
    except ValidationError as error:
        return None, [_translate(model, detail, under) for detail in error.errors(include_url=False)]


def _present(value: Any) -> Any:
    """The value without members that are null: to the API server null is absent."""
    if isinstance(value, dict):
        return {name: _present(member) for name, member in value.items() if member is not None}
    return [_present(item) for item in value] if isinstance(value, list) else value


def _translate(model: type[Model], detail: ErrorDetails, under: str) -> FieldError:
    location = detail["loc"]
    path = join_path((under, *location))
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "extra_forbidden":
        name, names = str(location[-1]), field_names(model, location[:-1])
        way_out = _peers_way_out(model, name, names, under) or nearest(name, names)
        return FieldError(path, UNKNOWN_FIELD, name, ", ".join(names), way_out)
    if kind == "missing":
        return FieldError(path, "required, but missing", way_out=f"add {location[-1]}")
    message, allowed = _SHAPES.get(kind, _plain)(detail, context)
    return FieldError(
        path, message, shorten(value), allowed, _WAYS_OUT.get(kind, f"correct {location[-1] if location else under}")
    )


def _plain(detail: ErrorDetails, context: Mapping[str, Any]) -> tuple[str, str]:
    return detail["msg"][:1].lower() + detail["msg"][1:], ""


def _enumeration(detail: ErrorDetails, context: Mapping[str, Any]) -> tuple[str, str]:
    allowed = str(context["expected"]).replace("'", "").replace(" or ", ", ")
    return f"{UNSUPPORTED_VALUE} {shorten(detail['input'])!r}", allowed


def _pattern(detail: ErrorDetails, context: Mapping[str, Any]) -> tuple[str, str]:
    pattern = str(context["pattern"])
    return f"{shorten(detail['input'])!r} has not the form that is needed", PATTERNS.get(pattern, pattern)


def _bound(sign: str, key: str, unit: str = "") -> Any:
    def say(detail: ErrorDetails, context: Mapping[str, Any]) -> tuple[str, str]:
        value = detail["input"]
        measured = len(value) if unit and isinstance(value, (str, list)) else shorten(value)
        return f"{measured}{unit} is out of bounds", f"{sign} {context[key]}{unit}"

    return say


def _type(name: str) -> Any:
    def say(detail: ErrorDetails, context: Mapping[str, Any]) -> tuple[str, str]:
        return f"{quoted(detail['input'])} is not {name}", name

    return say


_SHAPES: dict[str, Any] = {
    "int_type": _type("a whole number"),
    "string_type": _type("a string"),
    "bool_type": _type("true or false"),
    "list_type": _type("a list"),
    "model_type": _type("a mapping"),
    "dict_type": _type("a mapping"),
    "literal_error": _enumeration,
    "string_pattern_mismatch": _pattern,
    "greater_than_equal": _bound("at least", "ge"),
    "less_than_equal": _bound("at most", "le"),
    "string_too_long": _bound("at most", "max_length", " characters"),
    "string_too_short": _bound("at least", "min_length", " characters"),
    "too_long": _bound("at most", "max_length", " items"),
    "too_short": _bound("at least", "min_length", " items"),
}
_WAYS_OUT = {
    "literal_error": "use one of the allowed values",
    "int_type": "write a whole number without quotes",
    "string_type": "put the value in quotes",
    "bool_type": "write true or false",
    "string_pattern_mismatch": "write it in the allowed form",
}


def nearest(name: str, names: Sequence[str]) -> str:
    """The way out of an unknown name."""
    return similar(name, names) or f"remove {name}"


def similar(name: str, names: Sequence[str]) -> str:
    """The way out of a name that resembles one of `names`; empty if it resembles none."""
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else ""


def _peers_way_out(model: type[Model], name: str, names: Sequence[str], under: str) -> str:
    """The way out of a name that another system has for a field of this kind; empty if there is none."""
    ours = [path for path in fields_of(name) if has_field(model, path)]
    here = next((path.rsplit(".", 1)[-1] for path in ours if path.rsplit(".", 1)[-1] in names), "")
    return f"did you mean {here}?" if here else f"the field for it is {under}.{ours[0]}" if ours else ""


def has_field(model: type[Model], path: str) -> bool:
    """Whether a model has the field at a path such as `sources[].weight`."""
    *parents, name = path.replace("[]", ".[]").split(".")
    try:
        return name in field_names(model, [0 if step == "[]" else step for step in parents])
    except KeyError:
        return False


def field_names(model: type[Model], location: Sequence[str | int]) -> list[str]:
    """The fields allowed at a place within a model, by their names in YAML."""
    schema: Any = _schema(model)
    definitions = schema.get("$defs", {})
    for step in location:
        schema = _open(schema, definitions)
        schema = schema["items"] if isinstance(step, int) else schema["properties"][step]
    return sorted(_open(schema, definitions).get("properties", {}))


@lru_cache(maxsize=64)
def _schema(model: type[Model]) -> Any:
    return model.model_json_schema()


def _open(schema: Any, definitions: Any) -> Any:
    """Follows a reference, through `anyOf [X, null]`."""
    schema = next((option for option in schema.get("anyOf", ()) if option.get("type") != "null"), schema)
    return definitions[schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema
