"""Owners in any layout: each element once, by a holder, in fair shares; and as ever where replicas are single devices."""

from __future__ import annotations

import itertools
import time
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coxswain.boxes import Box, full_box, intersect, window, zero_shard
from coxswain.config import ModelConfig
from coxswain.holdings import Holding, all_holdings
from coxswain.layout import Device, Layout, uniform_layout
from coxswain.models import parameter_specs
from coxswain.shards import shards, staying
from coxswain.transfers import Boxes, boxes_of
from coxswain_train.parallel.buckets import entries_of, make_buckets
from tests.layouts import LAYERS, SPECS, layout_of, layouts

LLAMA = ModelConfig(layers=12, hidden=4096, heads=32, kv_heads=8, feed_forward=11008)
Held = list[tuple[Holding, ...]]


def small(layout: Layout) -> Held:
    return list(all_holdings(SPECS, layout, LAYERS))


def llama(layout: Layout) -> Held:
    return list(all_holdings(parameter_specs(LLAMA, 32000), layout, LLAMA.layers))


def whole(shapes: dict[str, tuple[int, ...]], ranks: int) -> Held:
    return [tuple(Holding(full_box(name, shape)) for name, shape in shapes.items())] * ranks


@given(layouts())
def test_every_element_has_one_owner_and_each_owners_box_is_inside_a_box_it_holds(layout: Layout) -> None:
    held = small(layout)
    owners = shards(held)
    owned = {spec.name: np.zeros(spec.shape, dtype=int) for spec in SPECS}
    for rank, holdings in enumerate(held):
        mine = {h.box.name: h.box for h in holdings}
        assert owners.sizes()[rank] == sum(box.elements for box in owners.boxes(rank))
        for box in owners.boxes(rank):
            assert intersect(mine[box.name], box) == box
            owned[box.name][window(full_box(box.name, owned[box.name].shape), box)] += 1
    assert all((count == 1).all() for count in owned.values())


@given(layouts(), st.randoms(use_true_random=False))
def test_the_table_of_all_owners_has_their_boxes_wherever_they_are_held(layout: Layout, random: Random) -> None:
    """Owners may have a device, several (as of copies), or none."""
    owners, names = shards(small(layout)), [spec.name for spec in SPECS]
    pairs = [(device, random.randrange(owners.owners)) for device in range(owners.owners + 1)]
    found = rows_of(owners.table(names).on(pairs))
    assert found == rows_of(boxes_of(names, ((device, owners.boxes(owner)) for device, owner in pairs)))


def rows_of(boxes: Boxes) -> list[tuple[int, ...]]:
    columns = (boxes.device, boxes.name, boxes.first, boxes.last, boxes.left, boxes.right)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@given(layouts())
def test_an_owners_matrices_come_before_its_vectors_each_in_the_models_order(layout: Layout) -> None:
    order = [spec.name for spec in SPECS]
    owners = shards(small(layout))
    for rank in range(owners.owners):
        boxes = owners.boxes(rank)
        keys = [(len(box.shape) < 2, order.index(box.name)) for box in boxes]
        assert keys == sorted(keys)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 50])
def test_replicas_of_one_device_own_the_rows_and_the_order_that_stored_digests_rest_on(ranks: int) -> None:
    shapes = {"norm": (8,), "a": (8, 3), "b": (50, 2), "last": (5,)}
    owners = shards(whole(shapes, ranks))
    for rank in range(ranks):
        rows = [zero_shard(full_box(name, shapes[name]), ranks, rank) for name in ("a", "b", "norm", "last")]
        assert owners.boxes(rank) == tuple(row for row in rows if row is not None)


def least_load(held: Held) -> float:
    """The highest load that no division can avoid: that of some set of ranks with what only they hold."""
    cells: dict[frozenset[int], int] = {}
    groups = list(dict.fromkeys(held))
    for cell in shards(held).cells:
        key = frozenset(cell.holders)
        cells[key] = cells.get(key, 0) + cell.box.elements
    members = [sum(h == group for h in held) for group in groups]
    return max(
        sum(n for key, n in cells.items() if key <= set(some)) / sum(members[g] for g in some)
        for size in range(1, len(groups) + 1)
        for some in itertools.combinations(range(len(groups)), size)
    )


UNEQUAL = {
    "two stages beside one": [[(1, 4), (1, 12)], [(1, 12)]],
    "degrees 1, 2 and 4": [[(4, 12)], [(2, 12)], [(1, 12)]],
    "stages of unequal depth": [[(2, 3), (1, 12)], [(1, 8), (1, 12)], [(1, 12)]],
    "a chain": [[(1, 2), (1, 5), (1, 9), (1, 12)], [(1, 4), (1, 7), (1, 10), (1, 12)]],
    "many small, one large": [[(1, 12)]] * 20 + [[(8, 6), (8, 12)]],
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_the_highest_load_is_within_two_percent_of_the_least_possible(name: str) -> None:
    held = llama(layout_of(*UNEQUAL[name]))
    assert max(shards(held).sizes()) <= 1.02 * least_load(held)


@pytest.mark.parametrize("name", UNEQUAL)
def test_loads_are_as_even_as_those_found_by_small_steps(name: str) -> None:
    """The slow reference moves a thousandth at a time to the holder with the least."""
    held = llama(layout_of(*UNEQUAL[name]))
    found, slow = np.array(shards(held).sizes()), small_steps(held)
    assert np.abs(found - slow).max() <= 0.03 * slow.mean()


def small_steps(held: Held) -> np.ndarray:
    groups = list(dict.fromkeys(held))
    members = np.array([sum(h == group for h in held) for group in groups])
    amounts: dict[tuple[int, ...], float] = {}
    for cell in shards(held).cells:
        amounts[cell.holders] = amounts.get(cell.holders, 0) + cell.box.elements
    given_to = {key: np.zeros(len(key)) for key in amounts}
    loads = np.zeros(len(groups))
    for round_ in range(400):
        for key, amount in amounts.items():
            if round_ >= 200:  # takes back and gives again
                taken = given_to[key] * 0.05
                given_to[key] -= taken
                loads[list(key)] -= taken / members[list(key)]
            left = amount / 200 if round_ < 200 else float(taken.sum())
            for part in [left / 10] * 10:
                place = int(np.argmin(loads[list(key)]))
                given_to[key][place] += part
                loads[key[place]] += part / members[key[place]]
    return np.array([loads[groups.index(h)] for h in held])


def test_a_layout_of_256_ranks_of_equal_degree_is_balanced_within_two_percent() -> None:
    layout = uniform_layout([Device(i // 8, i % 8) for i in range(256)], LLAMA.layers, tensor=2, pipeline=2)
    sizes = shards(llama(layout)).sizes()
    stages = np.array(sizes).reshape(-1, 2, 2)
    assert (stages.max(0) <= 1.02 * stages.mean(0)).all()


def test_a_table_of_1024_ranks_costs_less_than_the_boxes_of_64_of_them_one_by_one() -> None:
    """Each rank makes two in a change, which training waits for. It takes a tenth of that; box by box it would take 16 times."""
    owners, names = shards(llama(layout_of(*[[(8, 6), (8, 12)]] * 64))), [s.name for s in parameter_specs(LLAMA, 32000)]
    begin = time.process_time()
    table = owners.table(names)
    made = time.process_time()
    some = [box for rank in range(64) for box in owners.boxes(rank)]
    assert table.name.size > 10 * len(some) and made - begin < time.process_time() - made


def test_a_cell_whose_gradient_no_holder_counts_is_refused_by_its_box() -> None:
    box = full_box("w", (4, 2))
    with pytest.raises(ValueError, match=r"name='w'.*no holder's gradient counts"):
        shards([(Holding(box, counts=False),)])


@given(layouts(), st.integers(20, 3000))
def test_buckets_hold_every_shared_element_once_and_no_rank_has_much_more_than_their_size(
    layout: Layout, elements: int
) -> None:
    owners = shards(small(layout))
    held = owners.holds(counting=False)
    seen: dict[tuple[int, int], int] = {}
    for bucket in make_buckets(owners, elements):
        entries = entries_of(owners, bucket)
        for owner, cell, row, rows in zip(entries.owner, entries.cell, entries.row, entries.rows, strict=True):
            for each in range(row, row + rows):
                assert seen.setdefault((cell, each), owner) == owner
        loads = held[:, entries.cell] @ (entries.units * bucket.unit)
        rows = max(owners.cells[cell].row * len(owners.cells[cell].owners) for cell in entries.cell)
        assert loads.max() <= elements + rows  # rows are not cut
    shared = [n for n, cell in enumerate(owners.cells) if owners.travels[n]]
    assert len(seen) == sum(owners.cells[n].box.shape[0] for n in shared)


def test_what_the_last_layers_hold_leaves_first() -> None:
    owners = shards(small(layout_of([(1, 4)], [(1, 4)])))
    buckets = make_buckets(owners, 600)
    last = {owners.cells[item.cell].box.name: place for place, b in enumerate(buckets) for item in b.items}
    assert last["head"] == 0
    for kind in ("queries", "keys", "output"):
        assert last[f"3.{kind}"] <= last[f"2.{kind}"] <= last[f"1.{kind}"] <= last[f"0.{kind}"]
    assert last["3.output"] < last["0.queries"] <= last["embedding"] <= last["tied"]
    assert last["tied"] >= len(buckets) - 2  # beside the vectors


def test_a_whole_matrix_has_one_owner_and_loads_stay_even() -> None:
    held = llama(layout_of([(2, 12)], [(1, 12)], [(1, 12)]))
    owners = shards(held, whole=lambda name: "proj" in name)
    cells = [cell for cell in owners.cells if "proj" in cell.box.name]
    assert {len(cell.owners) for cell in cells} == {1}
    assert sum(box.elements for rank in range(4) for box in owners.boxes(rank)) == sum(
        spec.box(0, 1).elements for spec in parameter_specs(LLAMA, 32000)
    )
    assert max(owners.sizes()) <= 1.1 * np.mean(owners.sizes())


def test_whole_matrices_go_the_largest_first_to_the_rank_that_owns_least_of_all_that_it_holds() -> None:
    """Two small ones and then a large one would leave a rank with three times as much as the other."""
    even = shards(whole({"a": (2, 4), "b": (2, 4), "c": (4, 4)}, 2), whole=lambda name: True)
    assert even.sizes() == [16, 16]
    mine, both = Holding(full_box("mine", (8, 4))), Holding(full_box("both", (2, 4)))
    assert shards([(mine, both), (both,)], whole=lambda name: name == "both").sizes() == [32, 8]


def test_a_part_of_a_matrix_that_one_rank_alone_holds_travels_beside_the_part_that_it_shares() -> None:
    """Its gradient begins in the middle of the matrix's: a whole one is added up where a sole parameter begins."""
    halves = shards([(Holding(full_box("w", (8, 2))),), (Holding(full_box("w", (4, 2))),)])
    assert [cell.holders for cell in halves.cells] == [(0, 1), (0,)]
    assert (halves.travels, halves.sole(0), halves.sole(1)) == ([True, True], {}, {})
    alone = shards([(Holding(full_box("v", (3, 2))), Holding(full_box("w", (8, 2))))])
    assert (alone.travels, alone.sole(0)) == ([False, False], {"v": 0, "w": 6})


def test_a_cell_that_is_cut_in_columns_moves_in_runs_as_long_as_all_columns_allow() -> None:
    """An index has 8 bytes for a run: of single elements it would take twice as much as they do."""
    columns = [(Holding(Box("w", (0, first), (8, wide))),) for first, wide in ((0, 6), (6, 12), (0, 18))]
    assert [(cell.box.shape, cell.unit) for cell in shards(columns).cells] == [((8, 6), 6), ((8, 12), 6)]
    assert [cell.unit for cell in shards(whole({"w": (8, 6)}, 2)).cells] == [6]


@given(layouts(), layouts(), st.randoms(use_true_random=False))
def test_what_stays_on_a_rank_is_no_more_than_it_owned_in_the_same_boxes(
    old: Layout, new: Layout, random: Random
) -> None:
    before, after = shards(small(old)), shards(small(new))
    former = [random.randrange(-1, before.owners) for _ in range(after.owners)]
    had = [set(before.boxes(rank)) if rank >= 0 else set() for rank in former]
    same = [sum(box.elements for box in after.boxes(rank) if box in had[rank]) for rank in range(after.owners)]
    assert all(0 <= found <= most for found, most in zip(staying(before, after, former), same, strict=True))
    assert staying(before, before, range(before.owners)) == before.sizes()


def test_rows_that_only_begin_or_only_end_where_they_did_do_not_stay() -> None:
    """Of 12 rows two ranks own [0, 6) and [6, 12), three own four each."""
    two, three = (shards(whole({"w": (12, 5)}, ranks)) for ranks in (2, 3))
    assert staying(two, three, [0, -1, 1]) == [0, 0, 0]
    assert staying(two, two, [0, -1]) == [30, 0]
