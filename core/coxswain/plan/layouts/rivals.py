"""What other systems would run: each keeps more of the current layout, or less of the cluster, than our search does.

All are judged by the same event simulation. `current` is the layout that runs, with its micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coxswain.plan.layouts.chains import Chain, chain, with_layers
from coxswain.plan.layouts.costs import Costs, Group
from coxswain.plan.layouts.malleus import malleus
from coxswain.plan.layouts.search import search, without
from coxswain.plan.layouts.settle import Draft, Settler

Rival = Callable[[Costs, Draft], Draft | None]


def slowed(costs: Costs, current: Draft) -> list[Chain] | None:
    """The current chains at the cluster's speeds; None: one of their devices is dead."""
    found = []
    for old in current.chains:
        groups = [_slowed(costs, g) for g in old.groups]
        if any(g.slowdown == float("inf") for g in groups):
            return None
        found.append(with_layers(costs, groups, old.layers, len(current.chains)))
    return found


def _slowed(costs: Costs, group: Group) -> Group:
    return group._replace(slowdown=max(costs.cluster.slowdowns[group.node][d] for d in group.devices))


def rigid(costs: Costs, current: Draft) -> Draft | None:
    """The unchanged layout, as Megatron-LM and DeepSpeed run on: the slowest device sets the pace."""
    chains = slowed(costs, current)
    return _with_counts(costs, chains, current.counts) if chains else None


def data_only(costs: Costs, current: Draft) -> Draft | None:
    """The unchanged layout with other micro-batches: strategy S2 of GREYHOUND (Wu et al., ATC 2025)."""
    chains = slowed(costs, current)
    return Settler(costs).deal(chains) if chains else None


def layers_only(costs: Costs, current: Draft) -> Draft | None:
    """The same groups and micro-batches with other layers, as ResiHP (arXiv 2605.06374) moves them between stages."""
    old = slowed(costs, current)
    chains = [chain(costs, c.groups, len(old)) for c in old] if old else []
    found = [c for c in chains if c]
    return _with_counts(costs, found, current.counts) if found and len(found) == len(chains) else None


def _with_counts(costs: Costs, chains: Sequence[Chain], counts: Sequence[int]) -> Draft:
    settler = Settler(costs)
    seconds = max(settler.seconds(c, m) for c, m in zip(chains, counts, strict=True))
    return Draft(tuple(chains), tuple(counts), seconds)


def drop_devices(costs: Costs, current: Draft) -> Draft | None:
    """Without slow devices, on the best layout that our search finds for the others; a restart is not counted.

    As ResiHP excludes devices, and Oobleck (Jang et al., SOSP 2023) plans pipelines for those that are left.
    """
    return _without(costs, [[x if x == 1 else float("inf") for x in row] for row in costs.cluster.slowdowns])


def drop_nodes(costs: Costs, current: Draft) -> Draft | None:
    """Without nodes that have a slow device, on the best layout for the others, as DLRover excludes nodes at a restart."""
    rows = costs.cluster.slowdowns
    return _without(costs, [list(row) if max(row, default=1) == 1 else [float("inf")] * len(row) for row in rows])


def _without(costs: Costs, slowdowns: list[list[float]]) -> Draft | None:
    other = without(costs, slowdowns)
    return search(other) if other else None


RIVALS: dict[str, Rival] = {
    "rigid": rigid,
    "drop-devices": drop_devices,
    "drop-nodes": drop_nodes,
    "data-only": data_only,
    "layers-only": layers_only,
    "malleus": malleus,
}
