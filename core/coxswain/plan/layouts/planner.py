"""`plan_layout`: searches, keeps devices in place, and weighs what a change gains against what it moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coxswain.errors import Refused
from coxswain.plan.layouts.chains import chain
from coxswain.plan.layouts.costs import Costs
from coxswain.plan.layouts.migration import migration
from coxswain.plan.layouts.result import kept_in_place
from coxswain.plan.layouts.rivals import data_only, slowed
from coxswain.plan.layouts.search import best_of, without
from coxswain.plan.layouts.settle import Draft, Settler
from coxswain.transfers import Traffic

HORIZON = 1_000  # steps that a new layout is expected to run


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout, and what it moves from the current one, where there is one."""

    draft: Draft
    traffic: Traffic | None = None

    def cost(self, horizon: int) -> float:
        """Seconds of so many steps and of the change."""
        return horizon * self.draft.seconds + (self.traffic.seconds if self.traffic else 0.0)


def plan_layout(costs: Costs, current: Draft | None = None, horizon: int = HORIZON) -> Plan:
    """The layout that takes least time over `horizon` steps, the change included. Raises Refused: the model does not fit."""
    best = best_of(costs)
    if current is None:
        if best is None:
            raise _no_layout(costs)
        return Plan(best)
    found = [*([kept_in_place(costs, best, current), best] if best else []), *_near(costs, current)]
    if not found:
        raise _no_layout(costs)
    return _cheapest(costs, current, found, horizon)


def _cheapest(costs: Costs, current: Draft, drafts: Sequence[Draft], horizon: int) -> Plan:
    """Of drafts that are nearly as fast, the one in place first; what moves is listed only where it can matter."""
    found: Plan | None = None
    for draft in sorted(drafts, key=lambda d: round(d.seconds, 2)):
        if found is None or horizon * draft.seconds < found.cost(horizon):
            plan = Plan(draft, migration(costs, current, draft))
            found = min(found or plan, plan, key=lambda p: p.cost(horizon))
    assert found
    return found


def _near(costs: Costs, current: Draft) -> Iterator[Draft]:
    """The rungs of the ladder before a search: other micro-batches; other layers and micro-batches."""
    if kept := data_only(costs, current):
        yield kept
    if other := levelled(costs, current):
        yield other


def levelled(costs: Costs, current: Draft) -> Draft | None:
    """The same tensor groups with other layers and micro-batches; None: one of their devices is dead, or none fit."""
    old = slowed(costs, current) or []
    chains = [c for c in (chain(costs, o.groups, len(old)) for o in old) if c]
    settler = Settler(costs)
    draft = settler.deal(chains) if old and len(chains) == len(old) else None
    return settler.polish(draft) if draft else None


def healthy_plan(costs: Costs) -> Draft:
    """The layout of the same devices, all at speed 1, by the same search."""
    other = without(costs, [[1.0] * len(row) for row in costs.cluster.slowdowns])
    best = best_of(other) if other else None
    if best is None:
        raise _no_layout(costs)
    return best


def _no_layout(costs: Costs) -> Refused:
    alive = sum(x < float("inf") for row in costs.cluster.slowdowns for x in row)
    message = (
        f"{alive} living devices of {costs.cluster.hardware} hold the model on no layout of at most "
        f"{costs.cluster.max_tensor} devices a tensor group; use more devices, a larger max_tensor, or recompute Full"
    )
    return Refused("MemoryTooSmall", message)
