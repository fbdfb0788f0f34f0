"""CustomResourceDefinitions from the table of kinds, the models' schemas and the rule table."""

from __future__ import annotations

import copy
import re
from functools import cache
from typing import Any

import yaml

from coxswain.api.common import Model
from coxswain.api.effects import stated
from coxswain.api.kinds import BY_NAME, KINDS, Column, Kind
from coxswain.api.pod_template import OWN, template_schema
from coxswain.api.rules import RULES, Rule
from coxswain.api.schema import Schema, structural
from coxswain.names import GROUP, VERSION


def crds() -> list[dict[str, Any]]:
    """All CRDs, in the order of the table of kinds."""
    return [crd(kind) for kind in KINDS]


def crd(kind: Kind) -> dict[str, Any]:
    names = {
        "kind": kind.name,
        "listKind": f"{kind.name}List",
        "plural": kind.plural,
        "singular": kind.name.lower(),
        "shortNames": [kind.short],
        "categories": ["training"],
    }
    scope = "Namespaced" if kind.namespaced else "Cluster"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": names,
            "versions": [_version(kind)],
        },
    }


def _version(kind: Kind) -> dict[str, Any]:
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _stored_schema(kind)},
        **({"subresources": _subresources(kind)} if kind.status else {}),
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
    }
    if kind.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in kind.selectable]
    return version


def schema_of(value: Any) -> Schema:
    """The schema of a value that names one of our kinds; empty: it names none."""
    kind = value.get("kind") if isinstance(value, dict) else None
    return object_schema(BY_NAME[kind]) if isinstance(kind, str) and kind in BY_NAME else {}


@cache
def object_schema(kind: Kind) -> Schema:
    """The schema of whole objects, with the rules in their places. Made once a process, so not to be changed."""
    schema: Schema = {
        "description": _documentation(kind.spec),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}."},
            "kind": {"type": "string", "description": f"{kind.name}."},
            "metadata": {"type": "object"},
            "spec": structural(kind.spec),
            **({"status": structural(kind.status)} if kind.status else {}),
        },
    }
    for path, effect in stated(kind.spec):
        field = _at(schema, f"spec.{path}")
        field["description"] = f"{field['description']} {effect.sentence}"
    for path in _TEMPLATES.get(kind.name, ()):
        _at(schema, path)["properties"] = copy.deepcopy(template_schema()["properties"])
    for rule in RULES:
        for place in rule.places:
            name, _, path = place.partition(":")
            if name == kind.name:
                _at(schema, path).setdefault("x-kubernetes-validations", []).append(_validation(rule))
    return schema


def _stored_schema(kind: Kind) -> Schema:
    """Without the defaults that the server must not write into stored objects."""
    schema = copy.deepcopy(object_schema(kind))
    for path in _UNSTORED.get(kind.name, ()):
        holder, _, field = path.rpartition(".")
        del _at(schema, holder)["properties"][field]["default"]
    return schema


# kubectl apply and Argo CD compare a list as a whole: with a default in an item every apply finds another list than that of the
# file. Lists that may not change while a job runs keep theirs, since objects of earlier releases hold them: a file without them
# would be refused as a change.
_CONDITIONS = tuple(f"spec.failurePolicy.rules[].{field}[].status" for field in ("onPodConditions", "onNodeConditions"))
_UNSTORED = {"DataMix": ("spec.sources[].maxPasses",), "TrainingJob": ("spec.mix.sources[].maxPasses", *_CONDITIONS)}
_TEMPLATES = {"TrainingJob": tuple(f"spec.{field}.template" for field in OWN)}


def _at(schema: Schema, path: str) -> Schema:
    """The part of the schema at `spec.phases[]`."""
    for step in filter(None, path.replace("[]", ".[]").split(".")):
        schema = schema["items"] if step == "[]" else schema["properties"][step]
    return schema


def _validation(rule: Rule) -> dict[str, str]:
    validation = {"rule": rule.cel, "message": rule.whole_message}
    if rule.says:
        validation["messageExpression"] = rule.whole_expression
    if rule.field and not rule.field.startswith(".metadata"):  # the API server takes no path into metadata
        validation["fieldPath"] = rule.field
    return validation


def _documentation(model: type[Model]) -> str:
    return " ".join((model.__doc__ or "").split())


def _subresources(kind: Kind) -> dict[str, Any]:
    subresources: dict[str, Any] = {"status": {}}
    if kind.scale:
        subresources["scale"] = {
            "specReplicasPath": kind.scale.spec,
            "statusReplicasPath": kind.scale.status,
            "labelSelectorPath": kind.scale.selector,
        }
    return subresources


def _column(column: Column) -> dict[str, Any]:
    printed: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**printed, "priority": 1} if column.wide else printed


class _Dumper(yaml.SafeDumper):
    """Quotes strings such as 1e-8: a number in YAML 1.2 (kubectl, Helm), but not in PyYAML."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="'" if _NUMBER.fullmatch(value) else None)


_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_Dumper.add_representer(str, _text)


def to_yaml(manifest: dict[str, Any]) -> str:
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
