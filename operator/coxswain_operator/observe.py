"""From manifests to the slim views that reconcile decides on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coxswain import names
from coxswain_operator.children import CONTENT
from coxswain_operator.cluster import Manifest
from coxswain_operator.reconcile.times import seconds
from coxswain_operator.reconcile.values import ChildView, PodView

Pairs = frozenset[tuple[str, str]]


def pod_view(pod: Manifest, nodes: Mapping[str, Pairs] | None = None) -> PodView:
    """`nodes`: conditions by node name, where a rule asks for them."""
    meta, status, labels = pod["metadata"], pod.get("status") or {}, pod["metadata"]["labels"]
    role, node = labels[names.LABEL_ROLE], pod["spec"].get("nodeName", "")
    ended = _terminated(status, role)
    return PodView(
        name=meta["name"],
        uid=meta["uid"],
        role=role,
        index=int(labels[names.LABEL_INDEX]),
        incarnation=int(labels[names.LABEL_INCARNATION]),
        attempt=int(labels.get(names.LABEL_ATTEMPT, 0)),
        phase=status.get("phase", "Pending"),
        ready=("Ready", "True") in conditions_of(status),
        exit_code=ended.get("exitCode"),
        reason=ended.get("reason") or status.get("reason") or "",
        message=ended.get("message") or "",
        conditions=conditions_of(status),
        node=node,
        node_conditions=(nodes or {}).get(node, frozenset()),
        deleting="deletionTimestamp" in meta,
        created=seconds(meta.get("creationTimestamp", "")),
        finished=seconds(ended.get("finishedAt") or ""),
    )


def _terminated(status: Manifest, role: str) -> dict[str, Any]:
    """How the main container ended; empty while it runs."""
    containers: list[dict[str, Any]] = status.get("containerStatuses") or []
    main = next((c for c in containers if c["name"] == role), dict[str, Any]())
    ended: dict[str, Any] = (main.get("state") or {}).get("terminated") or {}
    return ended


def conditions_of(status: Manifest) -> Pairs:
    return frozenset((c["type"], c["status"]) for c in status.get("conditions") or ())


def node_conditions(nodes: Iterable[Manifest]) -> dict[str, Pairs]:
    return {n["metadata"]["name"]: conditions_of(n.get("status") or {}) for n in nodes}


def child_view(child: Manifest) -> ChildView:
    meta = child["metadata"]
    return ChildView(
        kind=child["kind"],
        name=meta["name"],
        uid=meta["uid"],
        content=(meta.get("annotations") or {}).get(CONTENT, ""),
        deleting="deletionTimestamp" in meta,
    )
