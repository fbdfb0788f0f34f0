"""Objects of JSON, one behind another or between `---`, as kubectl takes a file that begins with one.

YAML has nearly all of JSON in it, but neither tabs between the words nor a letter in two halves (`\\ud83d\\ude00`).
"""

from __future__ import annotations

import json
from typing import Any

from coxswain.api.yaml_loader import MAX_DEPTH

_MARK = "\ufeff"  # that some editors put in front
_BETWEEN = "---"


def json_documents(text: str) -> list[Any] | None:
    """The objects. None where the text is anything else, or has what is better said of YAML, with line and column."""
    try:
        return _objects(text.removeprefix(_MARK).strip())
    except (ValueError, RecursionError):
        return None


def _objects(rest: str) -> list[Any] | None:
    found: list[Any] = []
    decoder = json.JSONDecoder(object_pairs_hook=_mapping)
    while rest.startswith("{"):
        value, end = decoder.raw_decode(rest)
        _check_depth(value, MAX_DEPTH)
        found.append(value)
        rest = rest[end:].lstrip().removeprefix(_BETWEEN).lstrip()
    return None if rest else found


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key appears twice")
    return made


def _check_depth(value: Any, left: int) -> None:
    if not left:
        raise RecursionError
    for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(member, left - 1)
