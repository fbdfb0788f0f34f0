"""Whether a pod fits on a node, as far as that is known without all pods of the cluster: the scheduler has the last word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from coxswain_operator.views import Manifest, NodeView

Amounts = dict[str, Decimal]  # three times 0.1 as floats is more than 0.3

_NUMBER = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)([a-zA-Z]*)")
_UNITS = {"": Decimal(1), "m": Decimal("1e-3"), "u": Decimal("1e-6"), "n": Decimal("1e-9")} | {
    unit + end: Decimal(base ** (power + 1))
    for base, end in ((1000, ""), (1024, "i"))
    for power, unit in enumerate(("k" if base == 1000 else "K", "M", "G", "T", "P", "E"))
}


def requests_of(spec: Manifest) -> Amounts:
    """Of the containers that run together. A limit without a request is one."""
    sidecars = [c for c in spec.get("initContainers", ()) if c.get("restartPolicy") == "Always"]
    total: Amounts = {}
    for container in (*spec["containers"], *sidecars):
        given = container.get("resources") or {}
        for name, text in {**(given.get("limits") or {}), **(given.get("requests") or {})}.items():
            total[name] = total.get(name, Decimal(0)) + amount(text)
    return total


def amount(quantity: str | int | float) -> Decimal:
    """Of `8`, `500m`, `16Gi`. What is no quantity asks for nothing: the API server refuses it."""
    match = _NUMBER.fullmatch(str(quantity))
    return Decimal(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else Decimal(0)


def misfit(name: str, node: NodeView, spec: Manifest, others: int) -> str:
    """Why the pod finds no place there beside `others` of its kind; empty: nothing that is known speaks against it."""
    if ("Ready", "True") not in node.conditions:
        return "not ready"
    if node.cordoned:
        return "cordoned"
    if not all(_tolerates(spec.get("tolerations") or (), *taint) for taint in node.taints):
        return "tainted"
    if not _is_admitted(name, node.labels, spec):
        return "not selected"
    wanted = requests_of(spec)
    short = sorted(r for r, n in wanted.items() if (others + 1) * n > amount(node.allocatable.get(r, 0)))
    return f"too little {short[0]}" if short else ""


def _tolerates(tolerations: Iterable[Manifest], key: str, effect: str) -> bool:
    """By key and effect; values are the scheduler's business."""
    return any(
        t.get("effect", "") in ("", effect) and (t.get("key", "") or key) == key and _forever(t) for t in tolerations
    )


def _forever(toleration: Manifest) -> bool:
    return toleration.get("tolerationSeconds") is None


def _is_admitted(name: str, labels: Mapping[str, str], spec: Manifest) -> bool:
    """By nodeName, nodeSelector and the required node affinity."""
    if spec.get("nodeName") not in (None, "", name):
        return False
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(_term(name, labels, t) for t in required.get("nodeSelectorTerms") or ())


def _term(name: str, labels: Mapping[str, str], term: Manifest) -> bool:
    fields, words = term.get("matchFields") or (), term.get("matchExpressions") or ()
    holds = all(_holds({"metadata.name": name}, f) for f in fields) and all(_holds(labels, e) for e in words)
    return bool(fields or words) and holds


def _holds(labels: Mapping[str, str], expression: Mapping[str, Any]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:  # Gt and Lt are the scheduler's business
            return True
