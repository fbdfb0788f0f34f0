"""Which rank holds a copy of which rank's shard."""

from __future__ import annotations

import random
from collections import Counter
from math import prod

import pytest

from coxswain.config import ModelConfig
from coxswain.copies import node_numbers, wards_of
from coxswain.cost.memory import Workload, peaks
from coxswain.layout import Device, Seat
from coxswain.models import parameter_specs
from tests.layouts import layout_of


def seats_on(trainers: list[int]) -> list[Seat]:
    return [Seat(rank, Device(trainer, rank), rank, 0, 0) for rank, trainer in enumerate(trainers)]


def test_one_trainer_keeps_no_copies() -> None:
    assert wards_of(seats_on([3, 3, 3])) == ()


@pytest.mark.parametrize("seed", range(50))
def test_every_rank_has_one_ward_and_one_holder_on_another_trainer_and_node_where_that_can_be(seed: int) -> None:
    rng = random.Random(seed)
    trainers = [rng.randrange(rng.randint(2, 6)) for _ in range(rng.randint(2, 24))]
    if len(set(trainers)) < 2:
        trainers[:2] = [0, 1]
    nodes = [f"n{rng.randrange(4)}" for _ in range(6)]
    wards = wards_of(seats_on(trainers), nodes)
    assert sorted(wards) == list(range(len(trainers)))
    for names in (trainers, [nodes[t] for t in trainers]):
        if 2 * max(Counter(names).values()) <= len(names) and len({*trainers}) == len({nodes[t] for t in {*trainers}}):
            assert all(names[rank] != names[ward] for rank, ward in enumerate(wards))


def test_copies_are_on_another_node_where_nodes_have_several_trainers() -> None:
    wards = wards_of(seats_on([0, 0, 1, 1, 2, 2, 3, 3]), ["a", "a", "b", "b"])
    assert all(rank // 4 != ward // 4 for rank, ward in enumerate(wards))


def test_a_trainer_whose_node_is_not_known_has_one_of_its_own() -> None:
    numbers = node_numbers(seats_on([0, 0, 1, 2, 3, 3]), ["a", "a"])
    assert numbers[:3] == [numbers[0]] * 3
    assert len({*numbers}) == 3 and numbers[4] == numbers[5]
    for known in range(4):
        assert len({*node_numbers(seats_on([0, 1, 2, 3]), "abcd"[:known])}) == 4


def test_trainers_on_nodes_without_a_name_have_one_each() -> None:
    assert len({*node_numbers(seats_on([0, 1, 2]), ["a", "", ""])}) == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_trainer_without_a_seat_changes_no_ward_whether_a_coordinator_names_its_node_or_not(seed: int) -> None:
    """Ranks that ask for their world before and after a takeover must agree, else they wait for gradients that nothing sends."""
    rng = random.Random(seed)
    seats = seats_on(sorted([0, 1, *(rng.randrange(4) for _ in range(rng.randint(0, 10)))]))
    nodes = [f"n{rng.randrange(3)}" for _ in range(8)]
    assert wards_of(seats, nodes) == wards_of(seats, nodes[:4]) == wards_of(seats, [*nodes[:4], "n0", "n0", "n9"])


def test_where_one_trainer_has_most_ranks_as_many_copies_as_can_be_are_elsewhere() -> None:
    wards = wards_of(seats_on([0, 0, 0, 1]))
    assert sorted(wards) == [0, 1, 2, 3]
    assert sum((rank == 3) != (ward == 3) for rank, ward in enumerate(wards)) == 2


def test_copies_double_the_predicted_state_and_the_gradient_of_an_owner() -> None:
    model = ModelConfig(layers=2, hidden=64, heads=4, kv_heads=2, feed_forward=96)
    layout, specs = layout_of([(1, 2)], [(1, 2)]), parameter_specs(model, 128)
    alone, kept = (peaks(model, specs, layout, Workload(2, 64, copies=copies))[0, 0, 0] for copies in (False, True))
    elements = sum(prod(spec.shape) for spec in specs)
    assert kept.optimizer == 2 * alone.optimizer == 12 * elements
    assert kept.reduction - alone.reduction == 4 * elements // 2
    assert (kept.parameters, kept.activations) == (alone.parameters, alone.activations)


def test_a_device_holds_a_copy_of_its_ward_s_shard_whatever_its_own_is() -> None:
    """The ward of a stage is the other one, on the trainer before: the embedding's optimizer state is on both then."""
    model = ModelConfig(layers=3, hidden=64, heads=4, kv_heads=2, feed_forward=96)
    layout, specs = layout_of([(1, 1), (1, 3)]), parameter_specs(model, 512)
    assert wards_of(layout.ranks()) == (1, 0)
    alone, kept = (peaks(model, specs, layout, Workload(2, 64, copies=copies)) for copies in (False, True))
    shards = [peak.optimizer for peak in alone.values()]
    assert shards[0] != shards[1]
    assert [peak.optimizer for peak in kept.values()] == [sum(shards)] * 2
    assert [peak.reduction for peak in kept.values()] == [shards[1] // 3, shards[0] // 3]


@pytest.mark.parametrize("seed", range(30))
def test_the_shift_is_the_first_with_the_fewest_wards_at_home(seed: int) -> None:
    """As counted one by one, over all shifts."""
    rng = random.Random(seed)
    seats = seats_on([0, 1, *(rng.randrange(rng.randint(1, 5)) for _ in range(rng.randint(0, 14)))])
    nodes = [f"n{rng.randrange(3)}" for _ in range(rng.randrange(6))]
    homes, places = [seat.device.trainer for seat in seats], node_numbers(seats, nodes)
    order = sorted(range(len(seats)), key=lambda rank: (places[rank], homes[rank]))

    def shared(values: list[int], shift: int) -> int:
        return sum(values[rank] == values[order[i - shift]] for i, rank in enumerate(order))

    best = min(range(1, len(seats)), key=lambda shift: (shared(homes, shift), shared(places, shift)))
    wards = wards_of(seats, nodes)
    assert [wards[rank] for rank in order] == [order[i - best] for i in range(len(seats))]
