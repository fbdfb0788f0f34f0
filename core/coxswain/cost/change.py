"""Memory while a world changes: a device holds its part of the old layout beside that of the new one until all have swapped."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from coxswain.copies import wards_of
from coxswain.cost.memory import MASTER, STATES
from coxswain.holdings import ParameterSpec, all_holdings
from coxswain.layout import Device, Layout
from coxswain.shards import Shards, shards, staying

WINDOWS = 2 * (64 << 20)  # bytes on their way: of the two rounds under way, sent and received


def change_peak(
    specs: Sequence[ParameterSpec], layers: int, before: Layout, after: Layout, element: int, copies: bool,
    whole: Collection[str] = (), nodes: Sequence[str] = (),
) -> tuple[Device, int]:  # fmt: skip
    """The device of the new layout that holds most, and its bytes, with the windows of what moves."""
    found = change_peaks(specs, layers, before, after, element, copies, whole, nodes)
    device, size = max(found.items(), key=lambda item: item[1])
    return device, size + WINDOWS


def change_peaks(
    specs: Sequence[ParameterSpec], layers: int, before: Layout, after: Layout, element: int, copies: bool,
    whole: Collection[str] = (), nodes: Sequence[str] = (),
) -> dict[Device, int]:  # fmt: skip
    """What each device of the new layout holds at most: weights, optimizer state and copies of both layouts.

    State that the device owns in the same box before and after is held once. A copy may stay as well, and counts twice.
    `element`: bytes of a weight. `whole`: parameters that must not be cut. `nodes`: of each trainer, on which it depends whose
    copy a device holds; () where they are unknown.
    """
    few, times = _unlike(specs, (before, after), whole)
    old, new = (shards(all_holdings(few, layout, layers), whole.__contains__, times) for layout in (before, after))
    had, ranks = _held(before, old, times, element, copies, nodes), {seat.device: seat.rank for seat in before.ranks()}
    seats = after.ranks()
    stays = staying(old, new, [ranks.get(seat.device, -1) for seat in seats])
    has = _held(after, new, times, element, copies, nodes)
    return {s.device: has[s.device] + had.get(s.device, 0) - STATES * MASTER * stays[s.rank] for s in seats}


def _unlike(
    specs: Sequence[ParameterSpec], layouts: Sequence[Layout], whole: Collection[str]
) -> tuple[list[ParameterSpec], dict[str, int]]:
    """The first of all parameters that every layout holds alike, and by its name how many they are.

    Layers are alike between two edges of stages. A parameter that must not be cut stands for itself.
    """
    stages = (stage for layout in layouts for replica in layout.replicas for stage in replica.stages)
    edges = sorted({edge for stage in stages for edge in (stage.start, stage.stop)})
    found, times = dict[object, ParameterSpec](), Counter[str]()
    for spec in specs:
        place = bisect_right(edges, spec.place) if isinstance(spec.place, int) else spec.place
        key = spec.name if spec.name in whole else (spec.shape, place, spec.split, spec.heads, spec.partial)
        times[found.setdefault(key, spec).name] += 1
    return list(found.values()), times


def _held(
    layout: Layout, owners: Shards, times: Mapping[str, int], element: int, copies: bool, nodes: Sequence[str]
) -> dict[Device, int]:
    """What each device holds between two steps. Gradients and activations are gone."""
    seats, sizes = layout.ranks(), owners.sizes()
    weights = [sum(h.box.elements * times[h.box.name] for h in held) for held in owners.holdings]
    wards = wards_of(seats, nodes) if copies else ()
    copied = [sizes[ward] for ward in wards] or [0] * len(seats)
    return {
        s.device: element * weights[owners.group_of[s.rank]] + STATES * MASTER * (sizes[s.rank] + copied[s.rank])
        for s in seats
    }
