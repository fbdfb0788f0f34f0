"""Memory while a world changes: a device holds its part of the old layout beside that of the new one until all have swapped."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from coxswain.copies import wards_of
from coxswain.cost.memory import MASTER, STATES
from coxswain.holdings import ParameterSpec, all_holdings
from coxswain.layout import Device, Layout
from coxswain.shards import Shards, shards, staying

WINDOWS = 2 * (64 << 20)  # bytes on their way: of the two rounds under way, sent and received


def change_peak(
    specs: Sequence[ParameterSpec], layers: int, before: Layout, after: Layout, element: int, copies: bool,
    whole: Collection[str] = (),
) -> tuple[Device, int]:  # fmt: skip
    """The device of the new layout that holds most, and its bytes, with the windows of what moves."""
    found = change_peaks(specs, layers, before, after, element, copies, whole)
    device, size = max(found.items(), key=lambda item: item[1])
    return device, size + WINDOWS


def change_peaks(
    specs: Sequence[ParameterSpec], layers: int, before: Layout, after: Layout, element: int, copies: bool,
    whole: Collection[str] = (),
) -> dict[Device, int]:  # fmt: skip
    """What each device of the new layout holds at most: weights, optimizer state and copies of both layouts.

    State that the device owns in the same box before and after is held once. A copy may stay as well; its holder depends
    on nodes, so it counts twice. `element`: bytes of a weight. `whole`: parameters that must not be cut.
    """
    old, new = (shards(all_holdings(specs, layout, layers), whole.__contains__) for layout in (before, after))
    had, ranks = _held(before, old, element, copies), {seat.device: seat.rank for seat in before.ranks()}
    seats = after.ranks()
    stays = staying(old, new, [ranks.get(seat.device, -1) for seat in seats])
    has = _held(after, new, element, copies)
    return {s.device: has[s.device] + had.get(s.device, 0) - STATES * MASTER * stays[s.rank] for s in seats}


def _held(layout: Layout, owners: Shards, element: int, copies: bool) -> dict[Device, int]:
    """What each device holds between two steps. Gradients and activations are gone."""
    seats, sizes = layout.ranks(), owners.sizes()
    weights = [sum(holding.box.elements for holding in held) for held in owners.holdings]
    wards = wards_of(seats) if copies else ()
    copied = [sizes[ward] for ward in wards] or [0] * len(seats)
    return {
        s.device: element * weights[owners.group_of[s.rank]] + STATES * MASTER * (sizes[s.rank] + copied[s.rank])
        for s in seats
    }
