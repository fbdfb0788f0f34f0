"""Registers the planners by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from numpy import int64
from numpy.typing import NDArray

from coxswain.cost.model import CostModel
from coxswain.errors import Refused
from coxswain.plan.assemble import assemble
from coxswain.plan.dealing import by_kind
from coxswain.plan.makespan.search import makespan
from coxswain.plan.pipelines.dispatch import on_pipelines
from coxswain.plan.problem import Planner, make_problem
from coxswain.plan.rivals.bytescale import bytescale
from coxswain.plan.rivals.flexsp import flexsp
from coxswain.plan.rivals.hydraulis import hydraulis
from coxswain.plan.rivals.kk import kk
from coxswain.plan.rivals.naive import naive
from coxswain.plan.rivals.static import static
from coxswain.plan.rivals.waves import waves
from coxswain.plan.rivals.wlb import wlb
from coxswain.plan.values import Placement

BALANCES: dict[str, Planner] = {
    "makespan": on_pipelines(makespan),
    "naive": naive,
    "static": static,
    "bytescale": bytescale,
    "waves": waves,
    "wlb": wlb,
    "kk": kk,
    "flexsp": flexsp,
    "hydraulis": hydraulis,
}
SLOW = frozenset({"flexsp", "hydraulis"})
"""Those that solve integer programs, which takes seconds: the coordinator runs them in processes of their own."""

DEALS = 4
"""How often sequences are dealt to unequal kinds of replicas at most, each time by what was reached before."""


def planner(balance: str) -> Planner:
    """Returns the planner of that name, for replicas of any kinds; case does not matter (the API says Makespan)."""
    found = BALANCES.get(balance.lower())
    if found is None:
        raise Refused("UnknownBalance", f"balance {balance!r}: not known; use one of {', '.join(BALANCES)}")
    return partial(by_kind, found, deals=DEALS if found is BALANCES["makespan"] else 1)


def plan(
    balance: str,
    lengths: Sequence[int] | NDArray[int64],
    *,
    replicas: int,
    capacity: int,
    cost: CostModel,
    speeds: Sequence[float] | None = None,
    max_degree: int,
    node_size: int = 1,
    nodes: Sequence[int] | None = None,
) -> Placement:
    """Places one step, without operations. Rings of a static mesh may hold several sequences."""
    problem = make_problem(
        lengths,
        replicas=replicas,
        capacity=capacity,
        cost=cost,
        speeds=speeds,
        max_degree=max_degree,
        node_size=node_size,
        nodes=nodes,
    )
    return assemble(problem, balance.lower(), planner(balance)(problem))
