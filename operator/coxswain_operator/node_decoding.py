"""Decodes nodes and their quarantines into the views that reconcile reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from coxswain import names
from coxswain_operator.pod_decoding import ObjectMeta, PodCondition, conditions_of
from coxswain_operator.reconcile.times import seconds
from coxswain_operator.views import Manifest, NodeView, QuarantineView

_KEEPS_AWAY = ("NoSchedule", "NoExecute")


class _Struct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The fields that are read; the decoder skips all others."""


class Taint(_Struct, frozen=True):
    key: str
    effect: str


class NodeSpec(_Struct, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeStatus(_Struct, frozen=True):
    conditions: tuple[PodCondition, ...] | None = None
    allocatable: dict[str, str] | None = None


class Node(_Struct, frozen=True):
    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus | None = None


def node_view(node: Node) -> NodeView:
    status = node.status or NodeStatus()
    taints = tuple((t.key, t.effect) for t in node.spec.taints or () if t.effect in _KEEPS_AWAY)
    return NodeView(
        conditions_of(status.conditions),
        node.spec.unschedulable,
        taints,
        node.metadata.labels or {},
        status.allocatable or {},
        node.metadata.uid,
    )


def standing(quarantines: Iterable[Manifest]) -> list[Manifest]:
    """Those that are not being deleted: a deletion admits the node at once, also where a finalizer keeps the object."""
    return [q for q in quarantines if "deletionTimestamp" not in q["metadata"]]


def quarantine_view(quarantine: Manifest) -> QuarantineView:
    meta, spec = quarantine["metadata"], quarantine["spec"]
    return QuarantineView(
        name=meta["name"],
        uid=meta["uid"],
        node=spec["node"],
        created=seconds(meta["creationTimestamp"]),
        until=_end(spec.get("until")),
        job=(meta.get("labels") or {}).get(names.LABEL_JOB_UID, ""),
        node_uid=spec.get("nodeUid") or "",
    )


def _end(until: str | None) -> float:
    """A day that no calendar has ends nothing."""
    try:
        return seconds(until) or float("inf")
    except ValueError:
        return float("inf")
