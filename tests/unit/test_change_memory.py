"""The predicted memory of a change is the sum of what each parameter takes, and costs by kinds of parameters."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from coxswain.boxes import Box
from coxswain.config import ModelConfig
from coxswain.copies import wards_of
from coxswain.cost.change import change_peak, change_peaks
from coxswain.holdings import Holding, all_holdings
from coxswain.layout import Device, Layout
from coxswain.models import parameter_specs
from coxswain.shards import shards
from tests.layouts import LAYERS, SPECS, layout_of, layouts

NODES = st.lists(st.sampled_from(["a", "b", ""]), min_size=23, max_size=23)  # of the trainers of three replicas
MATRICES = frozenset(spec.name for spec in SPECS if isinstance(spec.place, int) and len(spec.shape) == 2)


def between(
    layout: Layout, whole: frozenset[str], copies: bool, nodes: list[str]
) -> dict[Device, tuple[int, dict[Box, set[Box]]]]:
    """What each device holds, in bytes, and by cell the boxes that it owns: parameter by parameter."""
    held: list[tuple[Holding, ...]] = list(all_holdings(SPECS, layout, LAYERS))
    owners, seats = shards(held, whole.__contains__), layout.ranks()
    owned = [{cell.box: rows(cell.box, *cell.rows_of(rank)) for cell in owners.cells} for rank in range(len(seats))]
    sizes = [sum(box.elements for boxes in each.values() for box in boxes) for each in owned]
    wards = wards_of(seats, nodes) if copies else ()
    copied = [sizes[ward] for ward in wards] or [0] * len(seats)
    weights = [2 * sum(holding.box.elements for holding in holdings) for holdings in held]
    return {s.device: (weights[s.rank] + 12 * (sizes[s.rank] + copied[s.rank]), owned[s.rank]) for s in seats}


def rows(box: Box, start: int, stop: int) -> set[Box]:
    mine = Box(box.name, (box.offset[0] + start, *box.offset[1:]), (stop - start, *box.shape[1:]))
    return {mine} if stop > start else set()


@given(layouts(), layouts(), st.sampled_from([frozenset[str](), MATRICES]), st.booleans(), NODES)
def test_the_memory_of_a_change_is_the_sum_over_its_parameters_one_by_one(
    before: Layout, after: Layout, whole: frozenset[str], copies: bool, nodes: list[str]
) -> None:
    """Of any two layouts, with and without matrices that must stay whole, and copies, which are on other nodes."""
    old, new = (between(layout, whole, copies, nodes) for layout in (before, after))

    def bytes_on(device: Device, size: int, owned: dict[Box, set[Box]]) -> int:
        had, former = old.get(device, (0, {}))
        stays = sum(box.elements for cell, boxes in owned.items() for box in boxes & former.get(cell, set()))
        return size + had - 12 * stays

    expected = {device: bytes_on(device, *there) for device, there in new.items()}
    assert change_peaks(SPECS, LAYERS, before, after, 2, copies, whole, nodes) == expected


def test_the_memory_of_a_change_of_1024_layers_costs_less_than_the_owners_of_512_one_by_one() -> None:
    """The coordinator answers nothing meanwhile. It takes an eighth of that; parameter by parameter it takes five times that."""
    begin = time.process_time()
    change_peaks(parameter_specs(llama(1024), 32000), 1024, in_stages(1024), in_stages(1024, gives=1), 2, False)
    predicted = time.process_time()
    shards(all_holdings(parameter_specs(llama(512), 32000), in_stages(512), 512))
    assert predicted - begin < time.process_time() - predicted


def test_the_fullest_device_of_a_change_has_besides_what_is_on_its_way() -> None:
    specs, before, after = parameter_specs(llama(16), 32000), in_stages(16), in_stages(16, gives=1)
    held = change_peaks(specs, 16, before, after, 2, False)
    device, most = change_peak(specs, 16, before, after, 2, False)
    assert len(set(held.values())) > 1 and held[device] == max(held.values())
    assert most - held[device] == 128 << 20


def llama(layers: int) -> ModelConfig:
    return ModelConfig(layers=layers, hidden=8192, heads=64, kv_heads=8, feed_forward=28672)


def in_stages(layers: int, gives: int = 0) -> Layout:
    """On 512 devices. The first stages give so many of their layers to the second ones."""
    stops = [layers * stage // 8 - gives * (stage == 1) for stage in range(1, 9)]
    return layout_of(*[[(8, stop) for stop in stops]] * 8)
