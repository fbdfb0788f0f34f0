"""What a change from one layout to another moves: weights that devices lack, and the optimizer's state by its owners."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from coxswain.cost.memory import MASTER, STATES
from coxswain.holdings import all_holdings
from coxswain.plan.layouts.costs import BF16, Costs
from coxswain.plan.layouts.result import layout_of
from coxswain.plan.layouts.settle import Draft
from coxswain.transfers import Boxes, Links, Traffic, Transfers, held_boxes, shared, traffic, transfers

Move = tuple[Transfers, Boxes, Boxes, int]  # a list, the boxes held and needed, and bytes of an element


def moves(costs: Costs, old: Draft, new: Draft) -> list[Move]:
    """The lists of weights and of optimizer state. What dead devices alone held comes from the checkpoint."""
    links, busy = links_of(costs), np.zeros(costs.cluster.devices)
    have, need = (_boxes(costs, draft) for draft in (old, new))
    pairs = (have, need, BF16), (shared(have), shared(need), STATES * MASTER)
    found = []
    for held, wanted, element in pairs:
        alive = _living(costs, held)
        found.append((transfers(alive, wanted, links, element, busy, stored=True), alive, wanted, element))
    return found


def migration(costs: Costs, old: Draft, new: Draft) -> Traffic:
    return traffic(moves(costs, old, new), links_of(costs))


def links_of(costs: Costs) -> Links:
    nodes = costs.cluster.nodes
    node = np.repeat(np.arange(len(nodes)), [len(n.devices) for n in nodes])
    return Links(node, costs.inside, costs.between * np.array([n.bandwidth for n in nodes])[node])


def _boxes(costs: Costs, draft: Draft) -> Boxes:
    """Devices are numbered node by node."""
    layout = layout_of(draft, costs.cluster)
    first = _firsts(costs)
    devices = [first[seat.device.trainer] + seat.device.device for seat in layout.ranks()]
    names = [spec.name for spec in costs.specs]
    return held_boxes(names, devices, all_holdings(costs.specs, layout, costs.model.layers))


def _firsts(costs: Costs) -> Sequence[int]:
    return [0, *accumulate(len(node.devices) for node in costs.cluster.nodes)]


def _living(costs: Costs, boxes: Boxes) -> Boxes:
    dead = np.isinf(np.array([x for row in costs.cluster.slowdowns for x in row]))
    return boxes.only(~dead[boxes.device]) if dead.any() else boxes
