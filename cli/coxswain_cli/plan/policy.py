"""The ParallelismPolicy that gives a job the chosen layout."""

from __future__ import annotations

from typing import Any, get_args

from coxswain.api.parallelism import HybridData
from coxswain.config import ReplicaShape
from coxswain.cost.constants import SHIPPED
from coxswain.names import GROUP, VERSION
from coxswain.plan.strategy.values import Machine, Strategy


def policy_of(strategy: Strategy, machine: Machine, hardware: str, balance: str) -> dict[str, Any]:
    """A manifest as `kubectl apply` and `cox run` read it. Constants of a file are not named: a job has only shipped ones."""
    named = {"hardware": hardware} if hardware in SHIPPED else {}
    hybrid: dict[str, Any] = {"tokensPerReplica": machine.capacity, "maxDegree": machine.max_degree}
    hybrid |= {"balance": _balance(balance)} | ({} if machine.attention == "Ring" else {"attention": machine.attention})
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "ParallelismPolicy",
        "metadata": {"name": "strategy"},
        "spec": {
            "layout": {"replicas": [_shape(shape) for shape in strategy.chosen.replicas]},
            "hybridData": hybrid,
            "recompute": strategy.chosen.recompute,
            **named,
        },
    }


def _shape(shape: ReplicaShape) -> dict[str, Any]:
    return {"count": shape.count, "stages": [{"layers": s.layers, "tensor": s.tensor} for s in shape.stages]}


def _balance(name: str) -> str:
    """As the API writes it; a planner that it does not know stays as it is, and is refused by the API."""
    spelled = get_args(HybridData.model_fields["balance"].annotation)
    return next((value for value in spelled if value.lower() == name.lower()), name)
