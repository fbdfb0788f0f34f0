"""`--set FIELD=VALUE`: fields of a TrainingJob from the command line."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from coxswain.api.crd import object_schema
from coxswain.api.kinds import BY_NAME
from coxswain.api.load import absolute, load_value
from coxswain.api.schema import Schema, whole_numbers
from coxswain.errors import Refused

Manifest = dict[str, Any]

_FIELD = re.compile(r"(?:metadata|spec)(?:\.[A-Za-z][\w-]*|\[[0-9]{1,4}\])+")


def overridden(job: Manifest, settings: Iterable[str]) -> Manifest:
    """The job with each `spec.field=value` in place. Raises Refused, naming a setting that has no such form or place.

    Values are YAML, but where the API wants a string they are taken as they are: 3e-4 needs no quotes. Relative `file:`
    uris are of the current folder.
    """
    result = copy.deepcopy(job)
    for setting in settings:
        field, equals, text = setting.partition("=")
        if not (equals and _FIELD.fullmatch(field)):
            raise _refused(setting, "it has not the form FIELD=VALUE; write it as spec.stop.steps=100")
        names = [int(word) if word.isdigit() else word for word in re.findall(r"[\w-]+", field)]
        _put(result, names, _value(setting, names, text), setting)
    return result


def _value(setting: str, names: list[str | int], text: str) -> Any:
    schema = _schema_at(names)
    if schema.get("type") == "string":
        return absolute(text, Path.cwd(), str(names[-1]))
    try:
        return absolute(whole_numbers(schema, load_value(text)), Path.cwd(), str(names[-1]))
    except yaml.YAMLError as error:
        raise _refused(setting, f"its value is not YAML ({getattr(error, 'problem', error)}); quote it") from error


def _schema_at(names: list[str | int]) -> Schema:
    schema: Schema = object_schema(BY_NAME["TrainingJob"])
    for name in names:
        schema = schema.get("items", {}) if isinstance(name, int) else schema.get("properties", {}).get(name, {})
    return schema


def _put(manifest: Manifest, names: list[str | int], value: Any, setting: str) -> None:
    """Sets a member; mappings on the way there are made, also where null stands for none; items of lists must exist."""
    place: Any = manifest
    for name, following in zip(names, [*names[1:], None], strict=True):
        inside = isinstance(place, list) if isinstance(name, int) else isinstance(place, dict)
        if not inside or (isinstance(name, int) and name >= len(place)):
            raise _refused(
                setting, f"there is no place for {name!r}; name a field of the job, and an item that its list has"
            )
        if following is None:
            place[name] = value
        elif isinstance(place, dict):
            place[name] = {} if place.get(name) is None else place[name]
            place = place[name]
        else:
            place = place[name]


def _refused(setting: str, why: str) -> Refused:
    return Refused("BadSetting", f"--set {setting[:120]}: {why}")
