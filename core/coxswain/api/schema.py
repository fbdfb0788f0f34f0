"""Makes Kubernetes' structural schemas of pydantic models, and defaults as the API server does.

pydantic's JSON schema is not structural: `$ref`, `anyOf` with null, `const`, exclusive bounds and `additionalProperties: false`
have to go.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from coxswain.api.common import Model

Schema = dict[str, Any]
_DROPPED = ("title", "additionalProperties", "$defs")


def structural(model: type[Model]) -> Schema:
    """The model's schema with everything in line. Defaults of objects are written out: rules judge them as they stand."""
    schema = model.model_json_schema(by_alias=True)
    return _inline(schema, schema.get("$defs", {}))


def _inline(node: Schema, definitions: Schema) -> Schema:
    node = _without_null(_without_reference(node, definitions), definitions)
    result = {key: value for key, value in node.items() if key not in _DROPPED}
    if "const" in result:
        result["enum"] = [result.pop("const")]
    for sign, bound, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        if sign in result:
            result[bound] = result.pop(sign) + step
    if "items" in result:
        result["items"] = _inline(result["items"], definitions)
    if "properties" in result:
        required = result.get("required", [])
        result["properties"] = {
            name: _property(value, name in required, definitions) for name, value in result["properties"].items()
        }
    if isinstance(result.get("default"), dict):
        result["default"] = with_defaults(result, {})
    return result


def _without_reference(node: Schema, definitions: Schema) -> Schema:
    """The referenced definition, with what the referring place says laid over it."""
    if "$ref" not in node:
        return node
    rest = {key: value for key, value in node.items() if key != "$ref"}
    return {**definitions[node["$ref"].rsplit("/", 1)[1]], **rest}


def _without_null(node: Schema, definitions: Schema) -> Schema:
    """`anyOf [X, null]` is an optional X: absent, never null."""
    if "anyOf" not in node:
        return node
    (kept,) = [option for option in node["anyOf"] if option.get("type") != "null"]
    rest = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
    return {**_without_reference(kept, definitions), **rest}


def _property(node: Schema, required: bool, definitions: Schema) -> Schema:
    """A member; a list that may be left out has an empty one as its default."""
    result = _inline(node, definitions)
    if result.get("type") == "array" and not required and "anyOf" not in node:
        result["default"] = []
    return result


def with_defaults(schema: Schema, value: Any) -> Any:
    """A copy of the value with the schema's defaults in place; null means absent.

    Values of a wrong shape are left as they are: saying so is the validator's business.
    """
    if isinstance(value, list) and "items" in schema:
        return [with_defaults(schema["items"], item) for item in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return copy.deepcopy(value)
    result = dict(value)
    for name, member in schema["properties"].items():
        given = result.pop(name, None)
        given = member.get("default") if given is None else given
        if given is not None:
            result[name] = with_defaults(member, given)
    return result


def whole_numbers(schema: Schema, value: Any) -> Any:
    """A copy whose integers are such where they are written as 6.0 or 1e3: kubectl sends 6 and 1000."""
    if isinstance(value, dict):
        members = schema.get("properties", {})
        return {name: whole_numbers(members.get(name, {}), member) for name, member in value.items()}
    if isinstance(value, list):
        return [whole_numbers(schema.get("items", {}), item) for item in value]
    whole = isinstance(value, float) and schema.get("type") == "integer" and value.is_integer()
    return int(value) if whole else value


def repeated(schema: Schema, value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and key of every item of a list-map whose key an earlier item has: the API server refuses them."""
    if isinstance(value, dict):
        for name, member in schema.get("properties", {}).items():
            if name in value:
                yield from repeated(member, value[name], f"{path}.{name}" if path else name)
    if isinstance(value, list) and "items" in schema:
        yield from _repeated_items(schema, value, path)
        for index, item in enumerate(value):
            yield from repeated(schema["items"], item, f"{path}[{index}]")


def _repeated_items(schema: Schema, items: list[Any], path: str) -> Iterator[tuple[str, Any]]:
    for key in schema.get("x-kubernetes-list-map-keys", ()):
        known = set[str]()
        for index, item in enumerate(items):
            found = item.get(key) if isinstance(item, dict) else None
            if isinstance(found, str) and found in known:
                yield f"{path}[{index}].{key}", found
            known |= {found} if isinstance(found, str) else set()
