"""A planned layout as a value: read and written as JSON, kept on the devices that hold its layers already, and judged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

import msgspec

from coxswain.errors import Refused
from coxswain.layout import Device, Layout, Replica, Stage
from coxswain.plan.layouts.chains import Chain, with_layers
from coxswain.plan.layouts.cluster import Cluster
from coxswain.plan.layouts.costs import Costs, Group, make_group
from coxswain.plan.layouts.settle import Draft, Settler
from coxswain.structs import UNDECODABLE, prepare


class PlannedStage(msgspec.Struct, frozen=True):
    """Layers [layers[0], layers[1]) on devices of a node."""

    node: str
    devices: tuple[int, ...]
    layers: tuple[int, int]
    memory_bytes: int = 0


class PlannedReplica(msgspec.Struct, frozen=True):
    micro_batches: int
    stages: tuple[PlannedStage, ...]


class CurrentLayout(msgspec.Struct, frozen=True):
    """What `--current` reads: of the output of `cox plan layout` the replicas alone."""

    replicas: tuple[PlannedReplica, ...]


def planned(costs: Costs, draft: Draft) -> tuple[PlannedReplica, ...]:
    """The draft with names of nodes and the memory of each stage's devices."""
    return tuple(
        PlannedReplica(count, _stages(costs, chain, len(draft.chains)))
        for chain, count in zip(draft.chains, draft.counts, strict=True)
    )


def _stages(costs: Costs, chain: Chain, replicas: int) -> tuple[PlannedStage, ...]:
    found, start, depth = [], 0, len(chain.groups)
    for s, (group, layers) in enumerate(zip(chain.groups, chain.layers, strict=True)):
        memory = costs.peak(group.degree, layers, s == 0, depth - s, replicas).total
        name = costs.cluster.nodes[group.node].name
        found.append(PlannedStage(name, group.devices, (start, start + layers), memory))
        start += layers
    return tuple(found)


def read_current(raw: bytes, where: str, costs: Costs) -> Draft:
    """The running layout, at the cluster's slowdowns. Raises Refused where it is none of this model on this cluster."""
    try:
        current = msgspec.json.decode(raw, type=CurrentLayout)
    except UNDECODABLE as error:
        raise Refused("BadLayout", f"{where}: {error}; give the output of `cox plan layout`") from None
    for message in _faults(current, costs):
        raise Refused("BadLayout", f"{where}: {message}")
    numbers = {node.name: n for n, node in enumerate(costs.cluster.nodes)}
    chains = []
    for replica in current.replicas:
        groups = [_group(costs.cluster, numbers[s.node], s.devices) for s in replica.stages]
        layers = [s.layers[1] - s.layers[0] for s in replica.stages]
        chains.append(with_layers(costs, groups, layers, len(current.replicas)))
    counts = tuple(replica.micro_batches for replica in current.replicas)
    settler = Settler(costs)
    alive = all(g.slowdown < float("inf") for c in chains for g in c.groups)
    seconds = max(settler.seconds(c, m) for c, m in zip(chains, counts, strict=True)) if alive else float("inf")
    return Draft(tuple(chains), counts, seconds)


def _group(cluster: Cluster, node: int, devices: Iterable[int]) -> Group:
    mine = tuple(devices)
    return make_group(node, mine, max(cluster.slowdowns[node][d] for d in mine))


def _faults(current: CurrentLayout, costs: Costs) -> list[str]:
    sizes = {node.name: len(node.devices) for node in costs.cluster.nodes}
    stages = [s for r in current.replicas for s in r.stages]
    found = [f"node {s.node!r} is not in the cluster file" for s in stages if s.node not in sizes]
    used = [(s.node, d) for s in stages for d in s.devices]
    found += [f"device {d} of {n!r} has two stages" for (n, d), times in Counter(used).items() if times > 1][:1]
    found += [f"device {d} is not on node {n!r}" for n, d in used if not 0 <= d < sizes.get(n, d + 1)]
    found += [
        f"a tensor group of {len(s.devices)} cannot share the model; allowed: {', '.join(map(str, costs.degrees))}"
        for s in stages
        if len(s.devices) not in costs.degrees
    ]
    found += [
        f"the stage on {s.node!r} has no layer, {list(s.layers)}; leave it out"
        for s in stages
        if s.layers[0] == s.layers[1]
    ]
    layers = costs.model.layers
    for number, replica in enumerate(current.replicas):
        edges = [(0, 0), *(s.layers for s in replica.stages), (layers, layers)]
        if any(a[1] != b[0] or b[0] > b[1] for a, b in pairwise(edges)) or not replica.stages:
            found.append(f"replica {number}: its stages do not have each of the {layers} layers once, in order")
        if replica.micro_batches < 1:
            found.append(f"replica {number}: micro_batches is {replica.micro_batches}; it must be at least 1")
    whole = sum(r.micro_batches for r in current.replicas)
    if whole != costs.cluster.micro_batches:
        found.append(f"the replicas have {whole} micro-batches, the cluster file {costs.cluster.micro_batches}")
    return found


def layout_of(draft: Draft, cluster: Cluster) -> Layout:
    """As the engine takes it: a node is a trainer; living devices without a stage are on standby."""
    replicas, used = [], set[Device]()
    for chain in draft.chains:
        stages, start = [], 0
        for group, layers in zip(chain.groups, chain.layers, strict=True):
            devices = tuple(Device(group.node, d) for d in group.devices)
            used.update(devices)
            stages.append(Stage(devices, start, start + layers))
            start += layers
        replicas.append(Replica(tuple(stages)))
    alive = [Device(n, d) for n, row in enumerate(cluster.slowdowns) for d, x in enumerate(row) if x < float("inf")]
    return Layout(tuple(replicas), tuple(d for d in alive if d not in used))


def kept_in_place(costs: Costs, draft: Draft, current: Draft) -> Draft:
    """The same layout with groups of one sort exchanged, so that devices keep the layers that they hold.

    Pairs of (stage, group) are taken by the layers that they have in common, most first.
    """
    held = _held(current)
    slots: dict[tuple[int, float], list[tuple[int, int, int, int]]] = defaultdict(list)
    free: dict[tuple[int, float], list[Group]] = defaultdict(list)
    for r, chain in enumerate(draft.chains):
        start = 0
        for s, (group, layers) in enumerate(zip(chain.groups, chain.layers, strict=True)):
            slots[group.degree, group.slowdown].append((r, s, start, start + layers))
            free[group.degree, group.slowdown].append(group)
            start += layers
    chosen = dict(pair for sort in slots for pair in _paired(slots[sort], free[sort], held))
    chains = [
        with_layers(costs, [chosen[r, s] for s in range(len(c.groups))], c.layers, len(draft.chains))
        for r, c in enumerate(draft.chains)
    ]
    settler = Settler(costs)
    return settler.deal(chains) or draft


def _held(current: Draft) -> dict[tuple[int, int], tuple[int, int]]:
    """Layers of each device."""
    found = {}
    for chain in current.chains:
        start = 0
        for group, layers in zip(chain.groups, chain.layers, strict=True):
            found.update({(group.node, d): (start, start + layers) for d in group.devices})
            start += layers
    return found


def _paired(
    slots: list[tuple[int, int, int, int]], groups: list[Group], held: dict[tuple[int, int], tuple[int, int]]
) -> list[tuple[tuple[int, int], Group]]:
    common = sorted(
        (-_common(g, start, stop, held), i, j)
        for i, (_, _, start, stop) in enumerate(slots)
        for j, g in enumerate(groups)
    )
    taken: dict[int, int] = {}
    used = set[int]()
    for _, i, j in common:
        if i not in taken and j not in used:
            taken[i] = j
            used.add(j)
    return [((slots[i][0], slots[i][1]), groups[j]) for i, j in taken.items()]


def _common(group: Group, start: int, stop: int, held: dict[tuple[int, int], tuple[int, int]]) -> int:
    spans = (held.get((group.node, d), (0, 0)) for d in group.devices)
    return sum(max(0, min(stop, b) - max(start, a)) for a, b in spans)


prepare(__name__)
