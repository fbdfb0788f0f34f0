"""Merging a user's pod template over ours, as a strategic merge would: maps by key, lists of named things by name."""

from __future__ import annotations

from typing import Any

# The keys of list items; other lists are appended to.
KEYS = {
    "containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "ports": "containerPort",
    "volumeMounts": "mountPath", "imagePullSecrets": "name", "hostAliases": "ip",
}  # fmt: skip
# Of one thing there can be only one: what the user says is not mixed with ours.
_VOLUME_KINDS = ("emptyDir", "hostPath", "persistentVolumeClaim", "ephemeral", "csi")


def overlaid(spec: dict[str, Any], template: dict[str, Any], main: str) -> dict[str, Any]:
    """A user's template over a pod spec. `resources` and `env` at its top are the container's that is named `main`."""
    rest = {k: v for k, v in template.items() if k not in ("resources", "env")}
    own = {k: template[k] for k in ("resources", "env") if k in template}
    laid: dict[str, Any] = merged({**spec, "tolerations": _tolerations(spec, rest)}, rest)
    return merged(laid, {"containers": [{"name": main, **own}]}) if own else laid


def merged(base: Any, overlay: Any, field: str = "") -> Any:
    """`base` with everything that `overlay` says; neither is changed. Resources are the user's or ours, never a mixture."""
    if field == "resources":
        return overlay
    if isinstance(base, dict) and isinstance(overlay, dict):
        kept = _without_other_kinds(base, overlay)
        return {**kept, **{k: merged(kept[k], v, k) if k in kept else v for k, v in overlay.items()}}
    if isinstance(base, list) and isinstance(overlay, list):
        return _lists(base, overlay, KEYS.get(field, ""))
    return overlay


def _lists(base: list[Any], overlay: list[Any], key: str) -> list[Any]:
    if not key:
        return [*base, *overlay]
    changes = {item[key]: item for item in overlay}
    kept = [merged(item, changes.pop(item[key])) if item[key] in changes else item for item in base]
    return [*kept, *changes.values()]


def _without_other_kinds(base: dict[str, Any], overlay: dict[str, Any]) -> dict[str, Any]:
    """A volume of the same name and another kind replaces ours."""
    if not any(kind in overlay for kind in _VOLUME_KINDS):
        return base
    return {k: v for k, v in base.items() if k not in _VOLUME_KINDS or k in overlay}


def _tolerations(spec: dict[str, Any], template: dict[str, Any]) -> list[dict[str, Any]]:
    """Ours for keys that the user's template does not name: of two for one taint Kubernetes takes the shorter time."""
    theirs = {t.get("key") for t in template.get("tolerations", ())}
    return [t for t in spec.get("tolerations", ()) if t["key"] not in theirs]
