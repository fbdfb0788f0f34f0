"""Which ranks exchange activations: those of neighbouring stages, whose tensor degrees may differ."""

from __future__ import annotations

from dataclasses import dataclass

from coxswain.layout import Layout, Seat

Place = tuple[int, int, int]  # replica, stage, tensor


def rank_of(layout: Layout) -> dict[Place, int]:
    """The rank of every place."""
    return {(seat.replica, seat.stage, seat.tensor): seat.rank for seat in layout.ranks()}


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The ranks of the stages before and after that one rank exchanges with. None and empty: no such stage, or no part.

    Tensor rank j of a receiving stage takes from tensor rank j mod (degree of the sending stage).
    """

    input_from: int | None
    output_to: tuple[int, ...]
    gradient_from: int | None
    gradient_to: tuple[int, ...]


def neighbours_of(layout: Layout, seat: Seat) -> Neighbours:
    """The neighbours of one rank: inputs and gradients of outputs arrive, outputs and gradients of inputs leave."""
    ranks, stages = rank_of(layout), layout.replicas[seat.replica].stages
    before, after = seat.stage - 1, seat.stage + 1
    mine = len(stages[seat.stage].devices)

    def sender(stage: int) -> int | None:
        inside = 0 <= stage < len(stages)
        return ranks[seat.replica, stage, seat.tensor % len(stages[stage].devices)] if inside else None

    def receivers(stage: int) -> tuple[int, ...]:
        degree = len(stages[stage].devices) if 0 <= stage < len(stages) else 0
        return tuple(ranks[seat.replica, stage, j] for j in range(degree) if j % mine == seat.tensor)

    return Neighbours(sender(before), receivers(after), sender(after), receivers(before))
