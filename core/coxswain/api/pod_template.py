"""Pod templates: Kubernetes' PodTemplateSpec less what the operator sets, and every fault of one.

The schema is generated from the Kubernetes client (docs/tools/pod_template.py); the CRD holds the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from coxswain import names
from coxswain.api.field_errors import UNKNOWN_FIELD, FieldError, nearest, quoted, shorten
from coxswain.api.label_faults import key_faults
from coxswain.api.schema import repeated

Schema = dict[str, Any]
PARTS = ("metadata", "spec")
# Our containers by the field of the job's spec whose template is laid over them.
OWN = {"trainers": ("trainer", "constructor"), "data": ("coordinator", "loader")}
_SIDECAR = "constructor"  # of ours the only init container
# Kubernetes takes each once; of two that are laid over ours one would have no effect.
_MOUNTS: Schema = {"properties": {"volumeMounts": {"x-kubernetes-list-map-keys": ["mountPath"], "items": {}}}}
_NAMES: Schema = {"x-kubernetes-list-map-keys": ["name"], "items": _MOUNTS}
_ONCE: Schema = {"properties": dict.fromkeys(("volumes", "containers", "initContainers"), _NAMES)}
_OURS_ALONE = ("restartPolicy", "restartPolicyRules")  # of our containers: the operator judges their ends
_PREFIX = "COXSWAIN_"
_VARIABLES = (names.ENV_LOG_LEVEL, names.ENV_STORE_PATIENCE)  # of ours that users may set
_OPERATORS = (names.ENV_POD_NAME, names.ENV_POD_IP, names.ENV_POD_UID, names.ENV_NODE)
_TYPES: dict[str, tuple[type, str, str]] = {
    "string": (str, "a string", "put the value in quotes"),
    "integer": (int, "a whole number", "write a whole number without quotes"),
    "boolean": (bool, "true or false", "write true or false"),
    "array": (list, "a list", "write a list"),
    "object": (dict, "a mapping", "write a mapping"),
}


@lru_cache(maxsize=1)
def template_schema() -> Schema:
    """The structural schema, with every reference in line."""
    definitions = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    found: Schema = _expanded({"$ref": "V1PodTemplateSpec"}, definitions)
    return found


def _expanded(node: Any, definitions: Schema) -> Any:
    if isinstance(node, list):
        return [_expanded(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if isinstance(node.get("$ref"), str):
        return _expanded(definitions[node["$ref"]], definitions)
    return {name: _expanded(value, definitions) for name, value in node.items()}


def is_former(template: Mapping[str, Any]) -> bool:
    """A bare pod spec, the shape of releases before 0.2, which is still accepted."""
    return bool(template) and not any(part in template for part in PARTS)


def split_template(template: Mapping[str, Any], main: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and pod spec. In the former shape `resources` and `env` at the top are those of the container `main`."""
    if not is_former(template):
        return template.get("metadata") or {}, template.get("spec") or {}
    rest = {name: value for name, value in template.items() if name not in ("resources", "env")}
    own = {name: template[name] for name in ("resources", "env") if name in template}
    containers = [dict(c) for c in rest.get("containers") or ()]
    if own:
        others = [c for c in containers if c["name"] != main]
        containers = [*others, {"name": main, **next((c for c in containers if c["name"] == main), {}), **own}]
    return {}, {**rest, **({"containers": containers} if containers else {})}


def former_note(spec: Mapping[str, Any]) -> str:
    """What to say of templates in the former shape; empty without one."""
    named = [f"spec.{field}.template" for field in OWN if is_former((spec.get(field) or {}).get("template") or {})]
    if not named:
        return ""
    fields = "put its pod fields under spec, and resources and env into spec.containers under our container's name"
    return f"{' and '.join(named)}: a bare pod spec is accepted in this release only; {fields}"


def template_faults(spec: Any) -> list[FieldError]:
    """Every fault of the templates in a TrainingJob's spec."""
    found: list[FieldError] = []
    for field in OWN:
        template = spec[field].get("template") if isinstance(spec, dict) and isinstance(spec.get(field), dict) else None
        if isinstance(template, dict):
            found += _faults_of(f"spec.{field}.template", template, OWN[field])
    return found


def _faults_of(path: str, template: dict[str, Any], own: tuple[str, ...]) -> Iterator[FieldError]:
    schema = template_schema()
    if is_former(template):
        yield from _former_faults(path, template, own)
        return
    yield from _faults(schema, template, path)
    if isinstance(template.get("spec"), dict):
        yield from _container_faults(f"{path}.spec", template["spec"], own)
    metadata = template.get("metadata")
    for name in ("labels", "annotations"):
        keys = metadata.get(name) if isinstance(metadata, dict) else None
        yield from key_faults(name, f"{path}.metadata.{name}", keys if isinstance(keys, dict) else {})


def _former_faults(path: str, template: dict[str, Any], own: tuple[str, ...]) -> Iterator[FieldError]:
    """As if all stood under `spec`, without what has no effect there."""
    spec = template_schema()["properties"]["spec"]["properties"]
    container = spec["containers"]["items"]["properties"]
    known = {**spec, "resources": container["resources"], "env": container["env"]}
    without_effect = ("restartPolicy", "hostname", "subdomain", "automountServiceAccountToken")
    for name, value in template.items():
        if name in known:
            yield from _faults(known[name], value, f"{path}.{name}")
        elif name not in without_effect:
            close = nearest(name, [*known, *PARTS])
            shape = "a template has metadata and spec, such as template: {spec: {nodeSelector: {gpu: h100}}}"
            yield FieldError(f"{path}.{name}", UNKNOWN_FIELD, name, ", ".join(PARTS), f"{close}; {shape}")
    yield from _variable_faults(f"{path}.env", template.get("env"))
    yield from _container_faults(path, template, own)


def _container_faults(path: str, spec: dict[str, Any], own: tuple[str, ...]) -> Iterator[FieldError]:
    """Ours are laid over by name; all others need an image."""
    for place, key in repeated(_ONCE, spec, path):
        yield FieldError(place, f"{quoted(key)} stands there twice", key, way_out="make one of both")
    for field in ("containers", "initContainers"):
        containers = spec.get(field)
        for index, container in enumerate(containers if isinstance(containers, list) else ()):
            where, name = f"{path}.{field}[{index}]", container.get("name") if isinstance(container, dict) else None
            if not isinstance(name, str):
                continue
            place = "initContainers" if name == _SIDECAR else "containers"
            if name in own and field != place:
                yield FieldError(f"{where}.name", f"{name} is one of {place}", name, way_out=f"put it under {place}")
            if name not in own and not container.get("image"):
                message = f"container {name!r} needs an image: it is none of {', '.join(own)}"
                yield FieldError(f"{where}.image", message, way_out="add image, or correct the name")
            for part in _OURS_ALONE:
                if name in own and part in container:
                    yield FieldError(f"{where}.{part}", "the operator sets it", way_out=f"remove {part}")
            if name in own:
                yield from _variable_faults(f"{where}.env", container.get("env"))


def _variable_faults(path: str, env: Any) -> Iterator[FieldError]:
    """Variables of our containers that the operator sets, that nothing reads, or that no process takes."""
    for index, variable in enumerate(env if isinstance(env, list) else ()):
        name = str(variable.get("name")) if isinstance(variable, dict) else ""
        if name in _OPERATORS or (name.startswith(_PREFIX) and name not in _VARIABLES):
            allowed = f"{' and '.join(_VARIABLES)}, and names without {_PREFIX} but {', '.join(_OPERATORS)}"
            yield FieldError(f"{path}[{index}].name", f"{name} is the operator's", name, allowed, "remove it")
        if "=" in name or "\0" in name:
            yield FieldError(f"{path}[{index}].name", "no process takes it", name, "no = and no NUL", "correct it")
        if isinstance(variable, dict) and "\0" in str(variable.get("value")):
            yield FieldError(f"{path}[{index}].value", "a NUL, which no process takes", way_out="remove it")


def _faults(schema: Schema, value: Any, path: str) -> Iterator[FieldError]:
    """Null is absent, as to the API server, which refuses it as an item of a list."""
    if value is None:
        return
    if (problem := _problem(schema, value)) is not None:
        yield FieldError(path, problem[0], shorten(value), *problem[1:])
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if item is None:
                yield FieldError(f"{path}[{index}]", "an item without a value", way_out="remove it, or write its value")
            yield from _faults(schema["items"], item, f"{path}[{index}]")
    elif isinstance(value, dict):
        yield from _member_faults(schema, value, path)


def _member_faults(schema: Schema, value: dict[str, Any], path: str) -> Iterator[FieldError]:
    members, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, member in value.items():
        if name in members or others is not None:
            yield from _faults(members.get(name, others), member, f"{path}.{name}")
        elif members:
            yield FieldError(f"{path}.{name}", UNKNOWN_FIELD, name, ", ".join(members), nearest(name, list(members)))
    for name in schema.get("required", ()):
        if value.get(name) is None:
            yield FieldError(f"{path}.{name}", "required, but missing", way_out=f"add {name}")


def _problem(schema: Schema, value: Any) -> tuple[str, str, str] | None:
    """(message, allowed, way out) of a value of the wrong type or form."""
    shown = quoted(value)
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            return f"{shown} is neither a whole number nor a string", "a whole number or a string", "put it in quotes"
    else:
        type_, name, way_out = _TYPES[schema["type"]]
        if not isinstance(value, type_) or (type_ is int and isinstance(value, bool)):
            return f"{shown} is not {name}", name, way_out
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return f"{shown} has not the form that is needed", _form(schema), "correct it"
    if isinstance(value, str) and len(value) > schema.get("maxLength", len(value)):
        return f"{len(value)} characters is out of bounds", f"at most {schema['maxLength']} characters", "shorten it"
    if isinstance(value, dict) and len(value) > schema.get("maxProperties", len(value)):
        return f"{len(value)} entries is out of bounds", f"at most {schema['maxProperties']} entries", "remove some"
    return None


def _form(schema: Schema) -> str:
    """What a pattern asks for, in words where there are any: of numbers or strings, quantities alone have one."""
    return "a quantity such as 500m, 8G or 8Gi" if schema.get("x-kubernetes-int-or-string") else str(schema["pattern"])
