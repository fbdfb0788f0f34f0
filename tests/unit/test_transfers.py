"""Transfer lists: every element that is needed arrives exactly once, and nothing that is there moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from math import prod
from random import Random

import numpy as np
import pytest

from coxswain.boxes import Box
from coxswain.holdings import all_holdings
from coxswain.layout import Device, Layout, uniform_layout
from coxswain.models import parameter_specs
from coxswain.presets import PRESETS
from coxswain.transfers import (
    STORE,
    Boxes,
    Links,
    Seconds,
    Traffic,
    Transfers,
    boxes_of,
    held_boxes,
    least_bytes,
    shared,
    traffic,
    transfers,
)

SHAPES = {"a": (12, 8), "b": (20,), "c": (6, 6)}
DEVICES = 6


def random_box(random: Random, name: str) -> Box:
    starts = [random.randrange(n) for n in SHAPES[name]]
    shape = [random.randint(1, n - at) for at, n in zip(starts, SHAPES[name], strict=True)]
    return Box(name, tuple(starts), tuple(shape))


def random_boxes(random: Random, chance: float = 0.8) -> Boxes:
    held = [(d, [random_box(random, n) for n in SHAPES if random.random() < chance]) for d in range(DEVICES)]
    return boxes_of(list(SHAPES), held)


def links(nodes: int = 3) -> Links:
    return Links(np.arange(DEVICES) * nodes // DEVICES, 10.0, np.full(DEVICES, 1.0))


def painted(boxes: Boxes, name: int, device: int) -> np.ndarray:
    """How often the device has each element."""
    rows, columns = (*SHAPES[boxes.names[name]], 1)[:2]
    found = np.zeros((rows, columns), dtype=int)
    for n, d, *sides in zip(boxes.name, boxes.device, boxes.first, boxes.last, boxes.left, boxes.right, strict=True):
        if (n, d) == (name, device):
            found[sides[0] : sides[1], sides[2] : sides[3]] += 1
    return found


@pytest.mark.parametrize("seed", range(20))
def test_every_needed_element_arrives_once_from_a_holder_and_what_is_there_stays(seed: int) -> None:
    random = Random(seed)
    have, need = random_boxes(random), random_boxes(random)
    moves = transfers(have, need, links(), 4, stored=True)
    for name in range(len(SHAPES)):
        for device in range(DEVICES):
            held, wanted = painted(have, name, device) > 0, painted(need, name, device) > 0
            arrives = np.zeros_like(held, dtype=int)
            for i in np.flatnonzero((moves.name == name) & (moves.receiver == device)):
                box = np.s_[moves.first[i] : moves.last[i], moves.left[i] : moves.right[i]]
                arrives[box] += 1
                sender = moves.sender[i]
                holders = [painted(have, name, d)[box] > 0 for d in range(DEVICES)]
                assert holders[sender].all() if sender != STORE else not np.any(holders)
            assert (arrives == (wanted & ~held)).all()


@pytest.mark.parametrize("seed", range(5))
def test_the_bytes_are_the_least_that_can_move(seed: int) -> None:
    random = Random(seed)
    have, need = random_boxes(random, 1.0), random_boxes(random)
    moves = transfers(have, need, links(), 4, stored=True)
    found = traffic([(moves, have, need, 4)], links())
    assert found.bytes == found.least_bytes == int(moves.elements.sum()) * 4
    assert found.seconds >= found.bound_seconds


def traffic_of(moves: Sequence[tuple[Transfers, Boxes, Boxes, int]], links: Links) -> Traffic:
    """By loops."""
    devices, stored, least = range(links.node.size), 0, 0
    sent, received, out, into, alone = ([0] * len(devices) for _ in range(5))
    for found, have, need, element in moves:
        for elements, sender, receiver in zip(found.elements.tolist(), found.sender, found.receiver, strict=True):
            size = elements * element
            if sender == STORE:
                stored += size
                continue
            near = links.node[sender] == links.node[receiver]
            sent[sender] += size
            received[receiver] += size
            out[sender] += size / (links.inside if near else min(links.between[sender], links.between[receiver]))
            into[receiver] += size / (links.inside if near else min(links.between[sender], links.between[receiver]))
            alone[receiver] += size / (links.inside if near else links.between[receiver])
        for name, device in product(range(len(SHAPES)), devices):
            lacks = (painted(need, name, device) > 0) & (painted(have, name, device) == 0)
            least += int(lacks.sum()) * element
    total = sum(sent) + stored
    return Traffic(total, stored, least, max(sent), max(received), max(*out, *into), max(alone))


@pytest.mark.parametrize("seed", range(6))
def test_lists_that_move_together_count_what_each_device_sends_and_receives(seed: int) -> None:
    random = Random(seed)
    uneven = Links(links().node, 10.0, np.array([1.0, 0.5, 2.0, 1.0, 0.25, 1.0]))
    busy: Seconds = np.zeros(DEVICES)
    moves = []
    for element in (4, 12):
        have, need = random_boxes(random, 0.6), random_boxes(random)
        moves.append((transfers(have, need, uneven, element, busy=busy, stored=True), have, need, element))
    assert asdict(traffic(moves, uneven)) == pytest.approx(asdict(traffic_of(moves, uneven)))
    spent = [0.0] * DEVICES
    for found, *_, element in moves:
        living = found.only(found.sender != STORE)
        seconds = uneven.seconds(living.elements * element, living.sender, living.receiver)
        for sender, each in zip(living.sender, seconds, strict=True):
            spent[sender] += each
    assert busy.tolist() == pytest.approx(spent)


def test_bytes_are_counted_exactly_beyond_what_a_float_can_hold() -> None:
    have, need = (boxes_of(list(SHAPES), [(device, [Box("b", (0,), (1,))])]) for device in (0, 1))
    found = traffic([(transfers(have, need, links(), 2**53 + 1), have, need, 2**53 + 1)], links())
    assert found.most_sent == found.most_received == found.least_bytes == 2**53 + 1


def whole(device: int, name: str = "b") -> tuple[int, list[Box]]:
    return device, [Box(name, (0,) * len(SHAPES[name]), SHAPES[name])]


def test_a_device_of_the_same_node_sends_even_if_another_is_idle() -> None:
    have, need = boxes_of(list(SHAPES), [whole(0), whole(2)]), boxes_of(list(SHAPES), [whole(3)])
    assert transfers(have, need, links(), 4).sender.tolist() == [2]


def test_the_least_loaded_holder_sends_and_two_share_the_work() -> None:
    have = boxes_of(list(SHAPES), [whole(0), whole(1)])
    need = boxes_of(list(SHAPES), [whole(d) for d in (2, 3, 4, 5)])
    busy = np.zeros(DEVICES)
    moves = transfers(have, need, links(), 4, busy)
    assert sorted(moves.sender.tolist()) == [0, 0, 1, 1]
    assert busy[0] == busy[1] == 2 * 20 * 4 / 1.0
    busy = np.array([500.0, *[0.0] * 5])
    assert transfers(have, boxes_of(list(SHAPES), [whole(4)]), links(), 4, busy).sender.tolist() == [1]


def test_what_a_device_alone_can_send_counts_when_a_sender_of_another_part_is_chosen() -> None:
    sole, both = Box("a", (0, 0), SHAPES["a"]), Box("b", (0,), SHAPES["b"])
    have, need = boxes_of(list(SHAPES), [(0, [sole, both]), (1, [both])]), boxes_of(list(SHAPES), [(4, [sole, both])])
    busy = np.zeros(DEVICES)
    assert transfers(have, need, links(), 4, busy).sender.tolist() == [0, 1]
    assert busy[:2].tolist() == [12 * 8 * 4 / 1.0, 20 * 4 / 1.0]


@pytest.mark.parametrize("seed", range(3))
def test_each_receiver_takes_from_the_least_loaded_holder_of_its_node_that_is_next_in_turn(seed: int) -> None:
    """Of so many holders that a sort which keeps no order among equals would mix them up."""
    random = np.random.default_rng(seed)
    node, busy = np.arange(400) % 2, random.integers(5, size=400) * 100.0
    have, need = (boxes_of(list(SHAPES), [whole(d) for d in range(*part)]) for part in ((300,), (300, 400)))
    in_turn = [iter(sorted(range(n, 300, 2), key=lambda device: busy[device])) for n in (0, 1)]
    expected = [next(in_turn[receiver % 2]) for receiver in range(300, 400)]
    moves = transfers(have, need, Links(node, 10.0, np.full(400, 1.0)), 4, busy.copy())
    assert (moves.sender.tolist(), moves.receiver.tolist()) == (expected, list(range(300, 400)))


def test_a_part_that_no_device_holds_is_named_or_comes_from_the_checkpoint() -> None:
    have = boxes_of(list(SHAPES), [(0, [Box("b", (0,), (15,))])])
    need = boxes_of(list(SHAPES), [whole(1)])
    with pytest.raises(ValueError, match="b: no device holds rows 15 to 20"):
        transfers(have, need, links(), 4)
    moves = transfers(have, need, links(), 4, stored=True)
    assert traffic([(moves, have, need, 4)], links()).stored_bytes == 5 * 4


def test_of_several_parts_that_no_device_holds_the_first_is_named() -> None:
    have = boxes_of(list(SHAPES), [(0, [Box("b", (5,), (5,))])])
    with pytest.raises(ValueError, match="b: no device holds rows 0 to 5, columns 0 to 1"):
        transfers(have, boxes_of(list(SHAPES), [whole(1)]), links(), 4)


def test_a_box_that_one_device_holds_and_another_needs_moves_in_one_piece() -> None:
    box = Box("a", (0, 0), (5, 8))
    have, need = (boxes_of(list(SHAPES), [(device, [box])]) for device in (0, 1))
    moves = transfers(have, need, links(), 4)
    assert [column.tolist() for column in (moves.first, moves.last, moves.left, moves.right)] == [[0], [5], [0], [8]]


def test_a_box_that_begins_beyond_the_first_column_is_not_cut_at_a_row_of_that_number() -> None:
    box = Box("a", (0, 3), (5, 5))
    have, need = (boxes_of(list(SHAPES), [(device, [box])]) for device in (0, 1))
    moves = transfers(have, need, links(), 4)
    assert [column.tolist() for column in (moves.first, moves.last, moves.left, moves.right)] == [[0], [5], [3], [8]]
    assert shared(have).elements.tolist() == [25]


def test_layers_that_one_device_needs_alike_come_each_from_where_it_is() -> None:
    """Lists of alike layers are made once, also where stages that held them become one."""
    one, two = (Box(name, (0, 0), (4, 4)) for name in ("one", "two"))
    have, need = (boxes_of(["one", "two"], held) for held in ([(0, [one]), (1, [two])], [(2, [one, two])]))
    moves = transfers(have, need, links(), 4)
    assert (moves.name.tolist(), moves.sender.tolist()) == ([0, 1], [0, 1])


def test_receivers_of_a_node_take_turns_among_its_own_holders() -> None:
    node = np.array([0, 0, 1, 1, 1, 1])
    have, need = (boxes_of(list(SHAPES), [whole(d) for d in part]) for part in ((0, 1, 2), (3, 4, 5)))
    assert transfers(have, need, Links(node, 10.0, np.full(6, 1.0)), 4).sender.tolist() == [2, 2, 2]


def test_without_holders_all_comes_from_the_checkpoint_and_without_needs_nothing_moves() -> None:
    names, nothing = list(SHAPES), boxes_of(list(SHAPES), [])
    need = boxes_of(names, [whole(3)])
    moves = transfers(nothing, need, links(), 4, stored=True)
    assert (moves.sender.tolist(), moves.receiver.tolist(), moves.elements.tolist()) == ([STORE], [3], [20])
    assert transfers(need, nothing, links(), 4).name.size == 0
    for empty in (nothing, shared(nothing), held_boxes(names, [], []), shared(held_boxes([], [], []))):
        assert [each.dtype for each in (empty.name, empty.device, empty.first, empty.right)] == [np.int64] * 4
        assert empty.elements.tolist() == []


def test_where_nothing_is_lacking_nothing_moves_and_it_takes_no_time() -> None:
    have = boxes_of(list(SHAPES), [whole(0), whole(1)])
    moves = transfers(have, have, links(), 4)
    assert traffic([(moves, have, have, 4)], links()) == Traffic(0, 0, 0, 0, 0, 0.0, 0.0)


def test_owners_that_are_more_than_rows_own_no_empty_boxes() -> None:
    owned = shared(boxes_of(["c"], [(device, [Box("c", (0, 0), (4, 6))]) for device in range(DEVICES)]))
    assert owned.elements.tolist() == [6] * 4


def test_owners_of_equal_parts_own_rows_in_the_order_of_their_numbers() -> None:
    """So many that a sort which keeps no order among equals would mix them up."""
    owned = shared(boxes_of(["r"], [(device, [Box("r", (0,), (800,))]) for device in range(400)]))
    assert dict(zip(owned.device.tolist(), owned.first.tolist(), strict=True)) == {d: 2 * d for d in range(400)}


def test_owners_are_in_the_order_of_their_numbers_however_they_are_listed() -> None:
    owned = shared(boxes_of(["r"], [(device, [Box("r", (0,), (8,))]) for device in (3, 1, 2, 0)]))
    assert dict(zip(owned.device.tolist(), owned.first.tolist(), strict=True)) == {0: 0, 1: 2, 2: 4, 3: 6}


def layout_boxes(layout: Layout) -> Boxes:
    model = PRESETS["llama-tiny"]
    specs = parameter_specs(model, 512)
    devices = [seat.device.trainer * 4 + seat.device.device for seat in layout.ranks()]
    return held_boxes([s.name for s in specs], devices, all_holdings(specs, layout, model.layers))


def test_owners_of_a_layout_have_each_held_element_of_the_model_once() -> None:
    devices = [Device(t, d) for t in range(2) for d in range(4)]
    held = layout_boxes(uniform_layout(devices, 4, tensor=2, pipeline=2))
    owned = shared(held)
    specs = parameter_specs(PRESETS["llama-tiny"], 512)
    assert owned.elements.sum() == sum(prod(spec.shape) for spec in specs)
    assert least_bytes(held, owned, 1) == 0
    loads = np.bincount(owned.device, owned.elements)
    assert loads.max() < 1.2 * loads.mean()


def test_a_change_of_degrees_stages_and_replicas_moves_the_least_and_an_equal_layout_nothing() -> None:
    devices = [Device(t, d) for t in range(2) for d in range(4)]
    links = Links(np.arange(8) // 4, 10.0, np.full(8, 1.0))
    old, same = (layout_boxes(uniform_layout(devices, 4, tensor=2, pipeline=2)) for _ in range(2))
    new = layout_boxes(uniform_layout(devices, 4, tensor=1, pipeline=4))
    assert transfers(old, same, links, 2).name.size == 0
    moves = transfers(old, new, links, 2)
    found = traffic([(moves, old, new, 2)], links)
    assert found.bytes == found.least_bytes > 0
    assert found.seconds <= 1.43 * found.bound_seconds
