"""Merges a user's pod template over ours like a strategic merge: maps by key, lists by item name."""

from __future__ import annotations

from typing import Any

# The keys of list items; other lists are appended to.
KEYS = {
    "containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "ports": "containerPort",
    "volumeMounts": "mountPath", "imagePullSecrets": "name", "hostAliases": "ip",
}  # fmt: skip
# A volume and a probe have one kind: the user's replaces ours.
_KINDS = (
    (
        "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "configMap", "csi", "downwardAPI", "emptyDir",
        "ephemeral", "fc", "flexVolume", "flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "hostPath", "image", "iscsi",
        "nfs", "persistentVolumeClaim", "photonPersistentDisk", "portworxVolume", "projected", "quobyte", "rbd", "scaleIO",
        "secret", "storageos", "vsphereVolume",
    ),
    ("httpGet", "exec", "tcpSocket", "grpc"),
)  # fmt: skip
_NAMED = ("image", "imagePullPolicy")  # of a container: where one is empty, ours stays


def overlaid(spec: dict[str, Any], template: dict[str, Any], others: tuple[str, ...] = ()) -> dict[str, Any]:
    """A user's pod spec over ours. `others`: containers of the template that belong to pods of another role.

    A name that is empty is none, as to Kubernetes: over ours it would take the scheduler away, say.
    """
    wanted = {k: v for k, v in template.items() if v is not None and v != ""}
    if "containers" in wanted:
        wanted["containers"] = [c for c in wanted["containers"] if c["name"] not in others]
    laid: dict[str, Any] = merged({**spec, "tolerations": _tolerations(spec, wanted)}, wanted)
    return laid


def hardened(spec: dict[str, Any]) -> dict[str, Any]:
    """The pod with our rights in every container that a template adds and that says nothing of its own."""
    lists: dict[str, Any] = {
        k: [_hardened(c) for c in spec[k] or ()] for k in ("initContainers", "containers") if k in spec
    }
    return {**spec, **lists}


def _hardened(container: dict[str, Any]) -> dict[str, Any]:
    """Kubernetes takes no privileged container that may not escalate."""
    theirs = container.get("securityContext") or {}
    capabilities = theirs.get("capabilities") or {}
    if theirs.get("privileged") or {"SYS_ADMIN", "CAP_SYS_ADMIN"}.intersection(capabilities.get("add") or ()):
        return {**container, "securityContext": {**theirs, "allowPrivilegeEscalation": True}}
    ours = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **capabilities}}
    return {**container, "securityContext": {**ours, **theirs, "capabilities": ours["capabilities"]}}


def merged(base: Any, overlay: Any, field: str = "") -> Any:
    """`base` with all fields of `overlay`; neither is changed.

    Resources are the user's or ours, never a mixture. A list of named items without a value is one without items.
    """
    if field == "resources":
        return overlay
    if (overlay is None and field in KEYS) or (overlay == "" and field in _NAMED):
        return base
    if isinstance(base, dict) and isinstance(overlay, dict):
        kept = _without_other_kinds(base, overlay)
        return {**kept, **{k: merged(kept[k], v, k) if k in kept else v for k, v in overlay.items()}}
    if isinstance(base, list) and isinstance(overlay, list):
        return _lists(base, overlay, KEYS.get(field, ""))
    return overlay


def _lists(base: list[Any], overlay: list[Any], key: str) -> list[Any]:
    """One of the overlay is laid over ours; others of the same key, such as the UDP port of a TCP port, stay beside it."""
    if not key:
        return [*base, *overlay]
    changes = {item[key]: item for item in reversed(overlay)}
    kept = [merged(item, changes[item[key]]) if item[key] in changes else item for item in base]
    used = [changes[item[key]] for item in base if item[key] in changes]
    return [*kept, *(item for item in overlay if not any(item is one for one in used))]


def _without_other_kinds(base: dict[str, Any], overlay: dict[str, Any]) -> dict[str, Any]:
    """A volume of the same name, or a probe, of another kind replaces ours."""
    replaced = {kind for kinds in _KINDS if not overlay.keys().isdisjoint(kinds) for kind in kinds}
    return {k: v for k, v in base.items() if k not in replaced or k in overlay}


def _tolerations(spec: dict[str, Any], template: dict[str, Any]) -> list[dict[str, Any]]:
    """Our tolerations for keys that the user's template does not name.

    Of two tolerations for one taint Kubernetes applies the shorter time.
    """
    theirs = {t.get("key") for t in template.get("tolerations", ())}
    return [t for t in spec.get("tolerations", ()) if t["key"] not in theirs]
