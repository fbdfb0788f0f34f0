"""What the layout planner offers from a running layout: seconds of each step and of each change. It takes CPU seconds."""

from __future__ import annotations

from collections.abc import Collection

from coxswain.ladder.values import LEAST_GAIN, Kind, Option, Options, Speeds, speed_in
from coxswain.layout import Device, Layout, Replica
from coxswain.plan.layouts.chains import Chain, with_layers
from coxswain.plan.layouts.costs import Costs, Group, make_group
from coxswain.plan.layouts.migration import migration
from coxswain.plan.layouts.planner import healthy_plan, levelled
from coxswain.plan.layouts.result import kept_in_place, layout_of
from coxswain.plan.layouts.rivals import data_only
from coxswain.plan.layouts.search import search, without
from coxswain.plan.layouts.settle import Draft

FORM = 1.0  # seconds that forming the next world takes beside what moves
_MOST_ASIDE = 2  # layouts without the slowest devices: at 1,024 devices what moves takes a second of CPU for each


def at_speeds(costs: Costs, speeds: Speeds) -> Costs:
    """The same devices at other speeds; trainers are nodes. Raises ValueError: none is alive."""
    rows = [[1.0] * len(node.devices) for node in costs.cluster.nodes]
    for device, speed in speeds.items():
        rows[device.trainer][device.device] = 1 / speed if speed else float("inf")
    found = without(costs, rows)
    if found is None:
        raise ValueError("no device is alive")
    return found


def options_for(
    costs: Costs, current: Layout, speeds: Speeds, form: float = FORM, least_gain: float = LEAST_GAIN
) -> Options:
    """`costs`: of the cluster with every device at speed 1. Only layouts that are faster; none is searched where none can be."""
    now = at_speeds(costs, speeds)
    running = draft_of(now, current)
    kept = data_only(now, running)
    stay, healthy = kept.seconds if kept else float("inf"), healthy_plan(costs).seconds
    if not can_gain(stay, healthy, least_gain):
        return Options(current, dict(speeds), stay, healthy)
    found: list[tuple[Kind, Draft | None]] = [("Layers", levelled(now, running)), ("Groups", _searched(now, running))]
    better = [(kind, draft) for kind, draft in found if draft and draft.seconds < stay * (1 - least_gain)]
    layouts = tuple(_option(now, running, kind, draft, form) for kind, draft in better)
    return Options(current, dict(speeds), stay, healthy, layouts)


def surviving(current: Layout, devices: Collection[Device]) -> Layout | None:
    """The replicas all of whose devices are there, as they are; the other devices on standby. None: no replica is whole."""
    left = tuple(r for r in current.replicas if all(d in devices for s in r.stages for d in s.devices))
    used = {d for r in left for s in r.stages for d in s.devices}
    return Layout(left, tuple(sorted(set(devices) - used))) if left else None


def without_lost(costs: Costs, current: Layout, speeds: Speeds, form: float = FORM) -> Option | None:
    """The replicas that lost no device, as they are: found at once. None: there is none, or the others lack the memory."""
    now = at_speeds(costs, speeds)
    left = surviving(current, [seat.device for seat in current.ranks() if speed_in(speeds, seat.device) > 0])
    draft = settled(now, left) if left else None
    return None if draft is None else _option(now, draft_of(now, current), "Groups", draft, form)


def without_slow(costs: Costs, current: Layout, speeds: Speeds, stay: float, form: float = FORM) -> list[Option]:
    """The replicas without the slowest devices, as they are, then without the next slowest too. `costs`: at these speeds.

    They compute less, but may be faster for what slow devices cost besides tasks (`drag.py`). `stay`: finite seconds of a
    step as it is. Those of the options follow from it by the replicas' rates: micro-batches are dealt too coarsely to
    compare layouts that differ in little else.
    """
    limits = sorted({speed_in(speeds, seat.device) for seat in current.ranks()})[:_MOST_ASIDE]
    found = (_aside(costs, current, speeds, limit, stay, form) for limit in limits)
    return [option for option in found if option]


def _aside(
    costs: Costs, current: Layout, speeds: Speeds, limit: float, stay: float, form: float
) -> Option | None:  # fmt: skip
    """Devices of at most this speed go on standby. None: so do all replicas, or the others lack the memory."""
    every = {*current.standby, *(seat.device for seat in current.ranks())}
    left = surviving(current, [device for device in every if speed_in(speeds, device) > limit])
    if left is None or not all(_fits(costs, replica, len(left.replicas)) for replica in left.replicas):
        return None
    idle = every - {seat.device for seat in left.ranks()}
    layout = Layout(left.replicas, tuple(sorted(d for d in idle if speed_in(speeds, d) > 0)))
    running, draft = draft_of(costs, current), draft_of(costs, left)
    before, after = (sum(1 / chain.pace for chain in each.chains) for each in (running, draft))
    return Option("Groups", layout, stay * before / after, form + migration(costs, running, draft).seconds)


def settled(costs: Costs, layout: Layout) -> Draft | None:
    """The layout with micro-batches dealt by speed. None: a device of it is dead, or lacks the memory."""
    fits = all(_fits(costs, replica, len(layout.replicas)) for replica in layout.replicas)
    return data_only(costs, draft_of(costs, layout)) if fits else None


def _fits(costs: Costs, replica: Replica, replicas: int) -> bool:
    depth = len(replica.stages)
    most = [costs.most_layers(len(s.devices), i == 0, depth - i, replicas) for i, s in enumerate(replica.stages)]
    return all(s.stop - s.start <= n for s, n in zip(replica.stages, most, strict=True))


def can_gain(stay: float, healthy: float, least_gain: float = LEAST_GAIN) -> bool:
    """Whether any layout can be worth a change: none is faster than the best one of a healthy cluster."""
    return stay * (1 - least_gain) > healthy


def _searched(costs: Costs, running: Draft) -> Draft | None:
    best = search(costs)
    return best and min(kept_in_place(costs, best, running), best, key=lambda d: round(d.seconds, 2))


def _option(costs: Costs, running: Draft, kind: Kind, draft: Draft, form: float) -> Option:
    change = form + migration(costs, running, draft).seconds
    return Option(kind, layout_of(draft, costs.cluster), draft.seconds, change)


def draft_of(costs: Costs, layout: Layout) -> Draft:
    """The layout with its micro-batches shared out equally."""
    chains = tuple(_chain(costs, replica, len(layout.replicas)) for replica in layout.replicas)
    each, more = divmod(costs.cluster.micro_batches, len(chains))
    return Draft(chains, tuple(each + (r < more) for r in range(len(chains))), float("inf"))


def _chain(costs: Costs, replica: Replica, replicas: int) -> Chain:
    rows = costs.cluster.slowdowns
    groups: list[Group] = []
    for stage in replica.stages:
        node = stage.devices[0].trainer
        mine = [d.device for d in stage.devices]
        groups.append(make_group(node, mine, max(rows[node][d] for d in mine)))
    return with_layers(costs, groups, [s.stop - s.start for s in replica.stages], replicas)
