"""Merging a user's pod template over ours, as a strategic merge would: maps by key, lists of named things by name."""

from __future__ import annotations

from typing import Any

# How the items of a list are told apart; other lists are appended to.
KEYS = {
    "containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "ports": "containerPort",
    "volumeMounts": "mountPath", "imagePullSecrets": "name", "hostAliases": "ip",
}  # fmt: skip


def merged(base: Any, overlay: Any, field: str = "") -> Any:
    """`base` with everything that `overlay` says; neither is changed."""
    if isinstance(base, dict) and isinstance(overlay, dict):
        return {**base, **{k: merged(base[k], v, k) if k in base else v for k, v in overlay.items()}}
    if isinstance(base, list) and isinstance(overlay, list):
        return _lists(base, overlay, KEYS.get(field, ""))
    return overlay


def _lists(base: list[Any], overlay: list[Any], key: str) -> list[Any]:
    if not key:
        return [*base, *overlay]
    changes = {item[key]: item for item in overlay}
    kept = [merged(item, changes.pop(item[key])) if item[key] in changes else item for item in base]
    return [*kept, *changes.values()]
