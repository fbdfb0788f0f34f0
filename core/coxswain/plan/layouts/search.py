"""Finds a layout: cuts of nodes, a number of replicas, groups dealt to replicas, then exchanges between replicas.

Budgets count evaluated chains, never seconds, so that equal input gives equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from math import fsum

from coxswain.plan.layouts.costs import Costs, Group
from coxswain.plan.layouts.exhaustive import better_than
from coxswain.plan.layouts.groups import PENALTIES, Cutter
from coxswain.plan.layouts.moves import State, improve
from coxswain.plan.layouts.ordering import SMALL, Chains, strength
from coxswain.plan.layouts.settle import Draft

EVERY_CUT = 100  # where nodes can be cut in no more ways, all of them are tried
WHOLE = 8  # eighths of the stages that groups make
DEALT = 12_000  # groups that are dealt at most where no start with all stages fits; some second at 1,024 devices
_AS_GOOD = 1 - 1e-9  # of a draft's seconds: another one that takes no less is not taken
Start = tuple[tuple[Group, ...], int]  # groups, and the number of replicas that they are dealt to


@dataclass(frozen=True, slots=True)
class Effort:
    """How many cuts with a number of replicas are dealt out, how many of them are improved, by how many tries.

    `final` more tries go to each of the best `finalists`.
    """

    starts: int = 24
    improved: int = 5
    tries: int = 300
    finalists: int = 2
    final: int = 700


def search(costs: Costs, effort: Effort | None = None) -> Draft | None:
    """The best layout found, with slow devices and nodes or without them; None: the model fits on none that was tried."""
    parts = {part.cluster.slowdowns: part for part in _parts(costs)}
    return next(iter(_by_seconds(draft for part in parts.values() for draft in candidates(part, effort))), None)


def _parts(costs: Costs) -> Iterator[Costs]:
    """The cluster; what is left of it without slow devices, without nodes that others reach more slowly, and without both."""
    rows, none = costs.cluster.slowdowns, float("inf")
    rates = [node.bandwidth * any(x < none for x in row) for node, row in zip(costs.cluster.nodes, rows, strict=True)]
    near = [[x if rate == max(rates) else none for x in row] for rate, row in zip(rates, rows, strict=True)]
    yield costs
    for kept in (rows, near):
        for fast in (kept, [[x if x == 1 else none for x in row] for row in kept]):
            if part := without(costs, [[*row] for row in fast]):
                yield part


def best_of(costs: Costs) -> Draft | None:
    """As `search`, of a small case the best of all layouts. Its replicas may differ where those of `search` do not: a running job
    may not be able to have them, so its ladder asks for what is searched."""
    found = search(costs)
    return better_than(costs, found.seconds * _AS_GOOD if found else float("inf")) or found


def without(costs: Costs, slowdowns: list[list[float]]) -> Costs | None:
    """With other slowdowns, infinite for devices that are not to be used; None: all of them."""
    if all(x == float("inf") for row in slowdowns for x in row):
        return None
    return costs.at(slowdowns)


def candidates(costs: Costs, effort: Effort | None = None) -> list[Draft]:
    """Improved layouts, best first."""
    effort = effort or (Effort(300, 24, 60, 4, 150) if costs.cluster.devices <= SMALL else Effort())
    chains = Chains(costs)
    states = _states(costs, chains, effort.starts)
    states.sort(key=lambda s: s.score)
    improved = [improve(s, chains, effort.tries) for s in _varied(states, effort.improved)]
    improved.sort(key=lambda s: s.score)
    improved = [improve(s, chains, effort.final) for s in improved[: effort.finalists]] + improved[effort.finalists :]
    drafts = _by_seconds(chains.settler.deal(s.chains) for s in improved)
    polished = [chains.settler.polish(d) for d in drafts[: effort.finalists]]
    return _by_seconds([*polished, *drafts[effort.finalists :]])


def _by_seconds(drafts: Iterable[Draft | None]) -> list[Draft]:
    return sorted((d for d in drafts if d), key=lambda d: d.seconds)


def _varied(states: Sequence[State], count: int) -> list[State]:
    """The best states, with various numbers of replicas."""
    found: list[State] = []
    for state in states:
        if len(found) < count and sum(len(s.chains) == len(state.chains) for s in found) < 1 + count // 5:
            found.append(state)
    return found


def _states(costs: Costs, chains: Chains, starts: int) -> list[State]:
    """The starts dealt out. Where none fits, the first that do with fewer stages: each keeps activations for those behind it."""
    states = [s for start in _starts(costs)[:starts] for s in _dealt(chains, *start)]
    fewer = () if states else _within(_starts(costs, range(1, WHOLE)), DEALT)
    return states or list(islice((s for start in fewer for s in _dealt(chains, *start)), starts))


def _within(starts: Sequence[Start], groups: int) -> list[Start]:
    """The first starts, of so many groups together."""
    sums = accumulate(len(start) for start, _ in starts)
    return [start for start, dealt in zip(starts, sums, strict=True) if dealt <= groups]


def _starts(costs: Costs, parts: Sequence[int] = (WHOLE,)) -> list[Start]:
    """Cuts of all nodes and numbers of replicas, the most promising first, by a formula of relaxed numbers.

    `parts`: eighths of the stages that a replica can have; the largest and strongest groups are those.
    """
    cutter, layers = Cutter(costs.cluster.slowdowns, costs.degrees), costs.model.layers
    cuts = dict.fromkeys(cutter.all_groups(d, p) for d in costs.degrees for p in PENALTIES)
    cuts |= dict.fromkeys(cutter.every(EVERY_CUT))
    rated = [
        (_relaxed_seconds(costs, used, replicas), number, replicas, used)
        for number, groups in enumerate(cuts)
        for largest in [tuple(sorted(groups, key=lambda g: (-g.degree, -strength(g), g.node, g.devices)))]
        for replicas in _replica_numbers(len(groups), costs.cluster.micro_batches)
        for most in sorted({_most_groups(len(groups), replicas, layers, part) for part in parts})
        for used in [largest[:most] if most < len(groups) else groups]
    ]
    rated.sort(key=lambda r: r[:3])
    return [(groups, replicas) for seconds, _, replicas, groups in rated if seconds < float("inf")]


def _most_groups(groups: int, replicas: int, layers: int, part: int) -> int:
    """How many groups have a stage: no more than there are layers for."""
    if part == WHOLE:
        return min(groups, replicas * layers)
    return replicas * max(1, min(groups // replicas, layers) * part // WHOLE)


def _replica_numbers(groups: int, micro_batches: int) -> Iterator[int]:
    """All small numbers, then those that give pipelines of different depths."""
    most = min(groups, micro_batches)
    yield from sorted(
        set(range(1, min(most, 16) + 1)) | {max(1, groups // depth) for depth in range(1, 33)} & set(range(most + 1))
    )


def _relaxed_seconds(costs: Costs, groups: Sequence[Group], replicas: int) -> float:
    """Of a step whose layers and micro-batches can be cut at will; infinite where the model's states do not fit."""
    devices, layers = sum(g.degree for g in groups), costs.model.layers
    depth = len(groups) / replicas
    if not groups or depth > layers or not _states_fit(costs, devices, replicas):
        return float("inf")
    rates = [1 / costs.layer_seconds(g.degree, g.slowdown) for g in groups]
    coarse = 1 + 0.5 * depth / layers
    steps = costs.cluster.micro_batches + len(groups) - replicas
    largest = max(groups, key=lambda g: g.degree)
    part = max(1, round(layers * replicas * largest.degree / devices))
    sync = costs.sync_seconds(largest, part, False, False, replicas)
    return steps * layers / fsum(rates) * coarse + sync


def _states_fit(costs: Costs, devices: int, replicas: int) -> bool:
    if costs.limit is None:
        return True
    elements = costs.elements(1, costs.model.layers, True, True)
    return elements * (6 * replicas + 12) <= costs.limit * devices


def _dealt(chains: Chains, groups: Sequence[Group], replicas: int) -> Iterator[State]:
    """The groups spread over the replicas, and dealt so that weak ones are together."""
    batches = chains.costs.cluster.micro_batches
    for lists in (_spread(groups, replicas), _together(groups, replicas)):
        found = [chains.of(mine, replicas) for mine in lists]
        state = State([c for c in found if c], batches, chains.settler if chains.simulated else None)
        if len(state.chains) == replicas and state.judge():
            yield state


def _spread(groups: Sequence[Group], replicas: int) -> list[list[Group]]:
    """Strongest first, each to the replica that is weakest so far."""
    lists: list[list[Group]] = [[] for _ in range(replicas)]
    sums = [0.0] * replicas
    for group in sorted(groups, key=lambda g: (-strength(g), g.node, g.devices)):
        i = min(range(replicas), key=lambda i: (sums[i], i))
        lists[i].append(group)
        sums[i] += strength(group)
    return lists


def _together(groups: Sequence[Group], replicas: int) -> list[list[Group]]:
    """Weakest first, one replica after the other up to its part of the whole strength."""
    lists: list[list[Group]] = [[] for _ in range(replicas)]
    whole, used, i = fsum(map(strength, groups)), 0.0, 0
    for group in sorted(groups, key=lambda g: (strength(g), g.node, g.devices)):
        lists[i].append(group)
        used += strength(group)
        while i < replicas - 1 and used >= whole * (i + 1) / replicas - 1e-9:
            i += 1
    return lists
