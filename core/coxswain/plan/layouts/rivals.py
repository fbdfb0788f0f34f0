"""What other systems would run: each keeps more of the current layout, or less of the cluster, than our search does.

All are judged by the same event simulation. `current` is the layout that runs, with its micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

from coxswain.plan.layouts.chains import Chain, chain, with_layers
from coxswain.plan.layouts.costs import Costs, Group, make_group
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
    """The same groups and micro-batches with other layers: what moving layers between stages gives alone."""
    old = slowed(costs, current)
    chains = _levelled(costs, [c.groups for c in old]) if old else None
    return _with_counts(costs, chains, current.counts) if chains else None


def resihp(costs: Costs, current: Draft) -> Draft | None:
    """ResiHP (arXiv 2605.06374): of each tensor group the members that compute most, a power of two, with other layers and
    micro-batches. At its best: all members, or the micro-batches as they are, where that is faster."""
    parts = [[_subgroup(costs, g) for g in c.groups] for c in current.chains]
    whole = [[_slowed(costs, g) for g in c.groups] for c in current.chains]
    found = list[Draft]()
    for chains in (_levelled(costs, [[g for g in groups if g] for groups in parts]), _levelled(costs, whole)):
        if chains and (dealt := Settler(costs).deal(chains)):
            found += [dealt, _with_counts(costs, chains, current.counts)]
    return min(found, key=lambda draft: draft.seconds, default=None)


def _subgroup(costs: Costs, group: Group) -> Group | None:
    """The members whose number, a power of two, over the slowest one's slowdown is greatest; None: all are dead."""
    row, found = costs.cluster.slowdowns[group.node], list[tuple[float, Group]]()
    alive = sorted((d for d in group.devices if row[d] < float("inf")), key=lambda d: (row[d], d))
    for k in (1 << n for n in range(len(alive).bit_length())):
        found.append((k / row[alive[k - 1]], make_group(group.node, alive[:k], row[alive[k - 1]])))
    return max(found, key=itemgetter(0))[1] if found else None


def _levelled(costs: Costs, chains: Sequence[Sequence[Group]]) -> list[Chain] | None:
    """Chains of these groups with their layers levelled; None: one has a dead device, or the model does not fit on it."""
    if any(g.slowdown == float("inf") for groups in chains for g in groups) or not all(chains):
        return None
    found = [chain(costs, groups, len(chains)) for groups in chains]
    fit = [c for c in found if c]
    return fit if len(fit) == len(found) else None


def _with_counts(costs: Costs, chains: Sequence[Chain], counts: Sequence[int]) -> Draft:
    settler = Settler(costs)
    seconds = max(settler.seconds(c, m) for c, m in zip(chains, counts, strict=True))
    return Draft(tuple(chains), tuple(counts), seconds)


def drop_devices(costs: Costs, current: Draft) -> Draft | None:
    """Without slow devices, on the best layout that our search finds for the others; a restart is not counted.

    As Oobleck (Jang et al., SOSP 2023) plans pipelines for the devices that are left.
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
    "resihp": resihp,
    "malleus": malleus,
}
