"""`python -m docs.tools.pod_template`: writes the schema of pod templates from the models of the Kubernetes client.

What a template cannot set is left out: identity, restarts and addresses are the operator's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kubernetes.client.models.v1_pod_template_spec import V1PodTemplateSpec

Schema = dict[str, Any]
TARGET = Path(__file__).resolve().parents[2] / "core/coxswain/api/pod_template.json"

_LEFT_OUT = {
    "V1PodSpec": (
        "automountServiceAccountToken", "ephemeralContainers", "hostname", "hostnameOverride", "restartPolicy",
        "setHostnameAsFQDN", "subdomain",
    ),
}  # fmt: skip
_KEPT = {"V1ObjectMeta": ("annotations", "labels")}
_OPTIONAL = {"V1PodSpec": ("containers",)}
# The client takes quantities for strings; a server also takes numbers.
_QUANTITIES = ("limits", "requests", "overhead", "sizeLimit", "divisor")
QUANTITY = {
    "x-kubernetes-int-or-string": True,
    "pattern": r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$",
}


LABEL = {"type": "string", "maxLength": 63, "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"}


def definitions() -> dict[str, Schema]:
    """One schema for each type, with references between them, sorted by name."""
    raw = V1PodTemplateSpec.model_json_schema(by_alias=True, mode="serialization")
    models = {"V1PodTemplateSpec": raw, **raw["$defs"]}
    made: dict[str, Schema] = {}
    wanted = ["V1PodTemplateSpec"]
    while wanted:
        name = wanted.pop()
        if name not in made:
            made[name] = _object(name, models[name])
            wanted += _references(made[name])
    return {name: made[name] for name in sorted(made)}


def _object(name: str, model: Schema) -> Schema:
    kept = _KEPT.get(name, tuple(model.get("properties", {})))
    names = [p for p in kept if p not in _LEFT_OUT.get(name, ())]
    required = [p for p in model.get("required", ()) if p in names and p not in _OPTIONAL.get(name, ())]
    properties = {p: _property(p, model["properties"][p]) for p in sorted(names)}
    return {"type": "object", **({"required": required} if required else {}), "properties": properties}


def _property(name: str, node: Schema) -> Schema:
    if name == "labels":
        return {"type": "object", "additionalProperties": LABEL, "maxProperties": 64}
    found = _value(node)
    if name not in _QUANTITIES:
        return found
    return {"type": "object", "additionalProperties": QUANTITY} if found.get("type") == "object" else QUANTITY


def _value(node: Schema) -> Schema:
    if "$ref" in node:
        return {"$ref": node["$ref"].rsplit("/", 1)[1]}
    if "anyOf" in node:
        options = [_value(option) for option in node["anyOf"] if option.get("type") != "null"]
        return options[0] if len(options) == 1 else {"x-kubernetes-int-or-string": True}
    found: Schema = {"type": node["type"]}
    for part in ("items", "additionalProperties"):
        if isinstance(node.get(part), dict):
            found[part] = _value(node[part])
    return found


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [name for item in node for name in _references(item)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if "$ref" in node else []
    return own + [name for value in node.values() for name in _references(value)]


def text() -> str:
    """A line for each type."""
    lines = [f" {json.dumps(name)}: {json.dumps(schema)}" for name, schema in definitions().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    TARGET.write_text(text())
