"""Which rank keeps a copy of which rank's shard: its ward's, on another trainer, on another node where there is one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from coxswain.layout import Seat


def wards_of(seats: Sequence[Seat], nodes: Sequence[str] = ()) -> tuple[int, ...]:
    """By rank the rank whose shard it holds a copy of; each is one rank's ward. () where there is one trainer.

    `nodes`: of each trainer; () where they are unknown. Ranks in the order of nodes and trainers are shifted by the number
    that leaves the fewest with a ward on their own trainer, then on their own node.
    """
    homes, places = [seat.device.trainer for seat in seats], node_numbers(seats, nodes)
    if len(set(homes)) < 2:
        return ()
    order = sorted(range(len(seats)), key=lambda rank: (places[rank], homes[rank]))
    trainers, machines = _runs(homes), _runs(places)
    best = min(range(1, len(seats)), key=lambda shift: (_shared(trainers, shift), _shared(machines, shift)))
    ward = {rank: order[i - best] for i, rank in enumerate(order)}
    return tuple(ward[rank] for rank in range(len(seats)))


def _runs(values: Sequence[int]) -> Counter[int]:
    """How many values come so many times; in order they are runs of that length."""
    return Counter(Counter(values).values())


def _shared(runs: Counter[int], shift: int) -> int:
    """How many places of a circle have the value that is `shift` before them."""
    size = sum(length * number for length, number in runs.items())
    return sum(n * (max(0, length - shift) + max(0, length + shift - size)) for length, n in runs.items())


def node_numbers(seats: Sequence[Seat], nodes: Sequence[str]) -> list[int]:
    """By rank a number of its node. `nodes`: of each trainer; one that is not known has a node of its own.

    Trainers without a seat count for nothing: a coordinator that adopts the world does not name those that are gone, and ranks
    may ask either of the two.
    """
    trainers = [seat.device.trainer for seat in seats]
    number = {nodes[t]: t for t in sorted(set(trainers)) if t < len(nodes)}
    return [number[nodes[t]] if t < len(nodes) and nodes[t] else t for t in trainers]
