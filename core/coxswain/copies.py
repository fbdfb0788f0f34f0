"""Which rank keeps a copy of which rank's shard: its ward's, on another trainer, on another node where there is one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coxswain.layout import Seat


def wards_of(seats: Sequence[Seat], nodes: Sequence[str] = ()) -> tuple[int, ...]:
    """By rank the rank whose shard it holds a copy of; each is one rank's ward. () where there is one trainer.

    `nodes`: of each trainer; () where they are unknown. Ranks in the order of nodes and trainers are shifted by the number
    that leaves the fewest with a ward on their own trainer, then on their own node.
    """
    trainers = np.array([seat.device.trainer for seat in seats], dtype=np.int64)
    if len(set(trainers.tolist())) < 2:
        return ()
    node = np.array(node_numbers(seats, nodes))
    order = np.lexsort((trainers, node))
    homes, places = trainers[order], node[order]

    def shared(shift: int) -> tuple[int, int]:
        return int((homes == np.roll(homes, shift)).sum()), int((places == np.roll(places, shift)).sum())

    best = min(range(1, len(seats)), key=shared)
    wards = np.empty_like(order)
    wards[order] = np.roll(order, best)
    return tuple(wards.tolist())


def node_numbers(seats: Sequence[Seat], nodes: Sequence[str]) -> list[int]:
    """By rank a number of its node. `nodes`: of each trainer; a trainer beyond them has a node of its own."""
    number = {name: i for i, name in enumerate(nodes)}
    trainers = (seat.device.trainer for seat in seats)
    return [number[nodes[t]] if t < len(nodes) else len(nodes) + t for t in trainers]
