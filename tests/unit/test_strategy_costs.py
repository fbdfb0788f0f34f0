"""What a kind of replica costs besides its own work, and on what else a strategy depends."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

from coxswain.config import BatchConfig, ModelConfig, ParallelConfig
from coxswain.cost import load_constants
from coxswain.cost.constants import MODELS, device_memory, load_hardware
from coxswain.cost.memory import RESERVED, Workload
from coxswain.flops import loss_layers
from coxswain.layout import Device
from coxswain.models import parameter_specs
from coxswain.plan.problem import Draft, make_problem
from coxswain.plan.strategy.costs import after_tasks, exchange_of, kind_cost, stage_constants, stage_elements
from coxswain.plan.strategy.judge import kind_ends, step_seconds, trial_of
from coxswain.plan.strategy.kinds import (
    balanced,
    by_tensor,
    fits,
    fullest,
    kinds_of,
    memory_refusals,
    most,
    peak_bytes,
    still_fits,
)
from coxswain.plan.strategy.machine import asked, machine_of
from coxswain.plan.strategy.pool import NEVER, histogram, tables
from coxswain.plan.strategy.values import Alternative, Kind, Machine, Strategy, described

WHOLE, BATCH = Kind(1, (32,)), BatchConfig(tokens_per_step=2**16, max_sequence_tokens=8192)


def machine(trainers: tuple[int, ...] = (8, 8), **more: object) -> Machine:
    values = {
        "trainers": trainers, "model": MODELS["llama-7b"], "constants": load_constants("a100-80g"), "capacity": 8192,
        "max_degree": 1024, "memory": device_memory("a100-80g"), **more,
    }  # fmt: skip
    return Machine(**values)  # type: ignore[arg-type]


def linked(asked: Machine, inside: float, between: float) -> Machine:
    """Links of so many GB/s."""
    return replace(
        asked, constants=msgspec.structs.replace(asked.constants, inside_node_gbps=inside, between_nodes_gbps=between)
    )


def test_a_tensor_group_repeats_the_sums_of_forward_where_it_recomputes() -> None:
    """Over links that everything waits for: four sums a layer, six where both of forward come again."""
    slow = linked(machine(), 1e-6, 1e-6)
    none, selective, full = (
        stage_constants(slow, Kind(2, (32,)), mode).linear_us_per_token for mode in ("None", "Selective", "Full")
    )
    assert selective == full == pytest.approx(1.5 * none, rel=1e-3)


def test_the_sums_of_a_tensor_group_are_a_ring_all_reduce_of_four_activations_a_layer() -> None:
    """2 (t - 1) / t of 4 x 32 layers x 4096 x 2 bytes, over 1 kB/s."""
    found = stage_constants(linked(machine(), 1e-6, 1.0), Kind(4, (32,)), "None").linear_us_per_token
    assert found == pytest.approx(1e6 * 1.5 * 4 * 32 * 4096 * 2 / 1e3, rel=1e-3)


def test_each_sum_of_a_tensor_group_begins_with_thirty_microseconds() -> None:
    """Four of each layer in a task, in milliseconds."""
    plain = machine()
    for kind, sums in ((WHOLE, 0), (Kind(2, (32,)), 4 * 32), (Kind(8, (32,)), 4 * 32)):
        found = stage_constants(plain, kind, "None").task_ms
        assert found == pytest.approx(plain.constants.task_ms + 0.03 * sums)


def test_one_replica_updates_its_elements_at_six_times_the_link_and_exchanges_nothing() -> None:
    """44 bytes of each, over 6 x 100 GB/s."""
    alone = linked(machine((1,)), 100.0, 1e-9)
    elements = sum(prod(spec.shape) for spec in parameter_specs(alone.model, alone.model.vocabulary))
    assert after_tasks(alone, WHOLE) == pytest.approx(44 * elements / 600e9)


def test_a_stage_with_more_layers_sums_more_often() -> None:
    slow = linked(machine(), 1e-6, 1.0)
    even, uneven = (stage_constants(slow, Kind(2, each), "None").linear_us_per_token for each in ((16, 16), (24, 8)))
    assert uneven - even == pytest.approx(1e6 * 4 * (24 - 16) * 4096 * 2 / 1e3, rel=1e-3)


@pytest.mark.parametrize(("kind", "replicas"), [(WHOLE, 8), (Kind(4, (32,)), 2), (Kind(8, (17, 15)), 1)])
def test_heads_are_exchanged_among_the_replicas_of_a_node(kind: Kind, replicas: int) -> None:
    found = exchange_of(machine(attention="Ulysses"), kind, "None")
    assert found is not None
    assert found.node == replicas


def test_a_token_passes_to_the_next_stage_and_its_gradient_back() -> None:
    """Twice 4096 x 2 bytes, over 1 kB/s."""
    found = stage_constants(linked(machine(), 1e-6, 1.0), Kind(1, (16, 16)), "None").linear_us_per_token
    assert found == pytest.approx(1e6 * 2 * 4096 * 2 / 1e3, rel=1e-3)


@pytest.mark.parametrize("replicas", [2, 8])
def test_gradients_in_fp32_go_to_their_owners_and_weights_come_back_for_all_but_the_own_part(replicas: int) -> None:
    """Six bytes of each element, over 1 MB/s."""
    slow = linked(machine((1,) * replicas), 1e6, 1e-3)
    elements = sum(prod(spec.shape) for spec in parameter_specs(slow.model, slow.model.vocabulary))
    assert after_tasks(slow, WHOLE) == pytest.approx(6 * elements * (replicas - 1) / replicas / 1e6, rel=1e-3)


@pytest.mark.parametrize(("degree", "part"), [(1, 1.0), (2, 1 / 2), (4, 1 / 2), (8, 1 / 2)])
def test_ranks_beyond_the_key_heads_pass_on_a_whole_one_each(degree: int, part: float) -> None:
    two_heads = machine(model=msgspec.structs.replace(MODELS["llama-7b"], kv_heads=2))
    found = stage_constants(two_heads, Kind(degree, (32,)), "None").kv_bytes_per_token
    assert found == pytest.approx(part * two_heads.constants.kv_bytes_per_token)


def test_a_task_takes_as_long_as_on_its_busiest_stage_with_the_loss_where_that_is_the_last() -> None:
    plain, loss = machine(), loss_layers(MODELS["llama-7b"])
    for layers, busiest in (((16, 16), 16 + loss), ((24, 8), 24), ((8, 24), 24 + loss)):
        found = stage_constants(plain, Kind(1, layers), "None").attention_ns_per_token2
        assert found == pytest.approx(plain.constants.attention_ns_per_token2 * busiest / (32 + loss))


def test_gradients_of_several_trainers_travel_between_nodes_and_of_one_inside() -> None:
    for trainers, link in (((8,), 300.0), ((4, 4), 30.0)):
        fast, slow = (after_tasks(linked(machine(trainers), 300.0, between), WHOLE) for between in (30.0, 3.0))
        assert (fast == slow) == (link == 300.0)


@pytest.mark.parametrize(("devices", "node", "link"), [(2, 8, "inside"), (3, 8, "between")])
def test_activations_pass_inside_a_node_where_whole_replicas_fill_it(devices: int, node: int, link: str) -> None:
    kind = Kind(1, (11, 11, 10) if devices == 3 else (16, 16))
    base = linked(machine((node,)), 1.0, 1.0)
    changed = {"inside": linked(base, 0.5, 1.0), "between": linked(base, 1.0, 0.5)}
    took = {name: stage_constants(each, kind, "None").linear_us_per_token for name, each in changed.items()}
    assert max(took, key=took.__getitem__) == link


def test_a_step_s_seconds_are_the_mean_of_the_sampled_ones() -> None:
    plain = machine((2,))
    trial = trial_of(plain, ((WHOLE, 2),), "None")
    steps = [np.array([1024] * 4), np.array([8192] * 6), np.array([4096] * 2)]
    each = [step_seconds(plain, trial, [lengths], "Naive") for lengths in steps]
    assert step_seconds(plain, trial, steps, "Naive") == pytest.approx(sum(each) / 3)


def test_a_pipeline_drains_for_its_own_longest_task_and_not_for_that_of_another_one() -> None:
    """The replica that ends last has short packs: nothing on it waits for the long one of the other."""
    plain = machine((4,))
    kind = Kind(1, (17, 15))
    cost = kind_cost(plain, kind, "None")
    lengths = [8192, *[2048] * 20]
    problem = make_problem(lengths, replicas=2, capacity=8192, cost=cost.tasks, max_degree=2, node_size=2)
    drafts = [Draft((0,), (0,)), *(Draft((1,), (i,)) for i in range(1, 21))]
    long, short = (cost.tasks.pack_seconds([n]) for n in (8192, 2048))
    assert 20 * short > 2 * long
    assert kind_ends(problem, drafts, [True, True], cost) == pytest.approx(21 * short + cost.after)
    assert kind_ends(problem, drafts, [True, False], cost) == pytest.approx(2 * long + cost.after)


def test_a_step_ends_with_the_last_kind_of_its_replicas_and_one_without_a_task_adds_nothing() -> None:
    """One sequence is on the kind with which the step ends earlier; of two each kind has one."""
    plain = machine((3,), capacity=4096)
    counts = ((Kind(1, (17, 15)), 1), (WHOLE, 1))
    trial, one = trial_of(plain, counts, "None"), [np.array([1024])]
    took = step_seconds(plain, trial, one, "Makespan")
    ends = [cost.tasks.pack_seconds([1024]) * (1 + cost.drain) + cost.after for cost in trial.costs]
    idle = [cost.after for cost in trial.costs]
    assert took == pytest.approx(min(max(ends[0], idle[1]), max(ends[1], idle[0])))
    two = step_seconds(plain, trial, [np.array([4096, 4096])], "Makespan")
    assert two == pytest.approx(max(c.tasks.pack_seconds([4096]) * (1 + c.drain) + c.after for c in trial.costs))


def test_a_ring_that_a_node_does_not_hold_takes_longer_by_the_slower_link() -> None:
    """Two replicas of two devices make a node of four; a ring of three is on two nodes."""
    links, kind, lengths = (100.0, 0.01), Kind(2, (32,)), histogram([np.array([30_000])])
    costs = [kind_cost(linked(machine((4, 4)), 100.0, between), kind, "None") for between in links]

    def alone(capacity: int) -> list[list[float]]:
        """Seconds on at most one replica, two, ..., over each link between nodes."""
        each = (tables([kind], [cost], lengths, [4], [capacity], max_degree=4, node=4) for cost in costs)
        return [table.alone[0, 0].tolist() for table in each]

    near, far = alone(10_000)
    assert near[1] == far[1] == NEVER
    assert far[2] > 2 * near[2]
    near, far = alone(15_000)
    assert near[1] == pytest.approx(far[1]), "two are on one node"


def test_tensor_groups_are_of_one_trainer_each() -> None:
    uneven = machine((4, 2, 2))
    assert [most(uneven, Kind(t, (32,))) for t in (1, 2, 4)] == [8, 4, 1]
    assert most(uneven, Kind(4, (17, 15))) == 0


def test_a_kind_is_refused_for_memory_only_where_all_devices_together_do_not_share_enough() -> None:
    """7 G parameters: six bytes of each on every replica, and twelve shared by all of them."""
    few, many = machine((2,), memory=60 * 2**30), machine((8,) * 8, memory=60 * 2**30)
    assert list(memory_refusals(few, [WHOLE], "Full")) == [WHOLE]
    assert not memory_refusals(many, [WHOLE], "Full")


def test_one_trainer_keeps_no_copies_of_another_one_s_state() -> None:
    kept = [machine(trainers, copies=True).workload(1024, "None").copies for trainers in ((8,), (4, 4))]
    assert kept == [False, True]


@pytest.mark.parametrize(
    ("policy", "batch", "least", "capacity", "own"),
    [
        (8192, 2**16, 4096, 8192, 4096),
        (8192, 2**16, 8192, 8192, 0),
        (2**20, 2**16, 4096, 2**16 + 8192, 4096),
    ],
)
def test_a_task_is_no_larger_than_a_step_and_its_longest_sequence(
    policy: int, batch: int, least: int, capacity: int, own: int
) -> None:
    found = machine_of(
        MODELS["llama-7b"], ParallelConfig(tokens_per_replica=policy, hardware="a100-80g"),
        BatchConfig(tokens_per_step=batch, max_sequence_tokens=8192), (8,), whole_matrices=False, least=least,
    )  # fmt: skip
    assert (found.capacity, found.least) == (capacity, own)


@pytest.mark.parametrize(("hardware", "element"), [("cpu", 4), ("a100-80g", 2)])
def test_activations_are_as_wide_as_the_hardware_computes(hardware: str, element: int) -> None:
    found = machine_of(MODELS["llama-7b"], ParallelConfig(hardware=hardware), BATCH, (8,), whole_matrices=False)
    assert found.element == element
    assert found.workload(1024, "None") == Workload(element, 1024)


def test_whatever_changes_a_choice_asks_for_another_one() -> None:
    plain = machine()
    others = [
        replace(plain, model=msgspec.structs.replace(plain.model, layers=31)),
        replace(plain, constants=load_constants("h100-80g")),
        replace(plain, capacity=4096),
        replace(plain, max_degree=8),
        replace(plain, memory=2**36),
        replace(plain, recompute=("Full",)),
        replace(plain, whole_matrices=True),
    ]
    hashes = [asked(each, BATCH, "Makespan") for each in (plain, *others)]
    hashes.append(asked(plain, BATCH, "Static"))
    hashes.append(asked(plain, msgspec.structs.replace(BATCH, tokens_per_step=2**17), "Makespan"))
    assert len(set(hashes)) == len(others) + 3
    named = replace(plain, model=msgspec.structs.replace(plain.model, preset="llama-7b", init_from="s3://x"))
    assert asked(named, BATCH, "Makespan") == hashes[0]


def test_kinds_reach_from_one_device_to_all_of_them_and_to_a_stage_of_each_layer() -> None:
    shallow = machine((2, 2), model=msgspec.structs.replace(MODELS["llama-7b"], layers=4))
    assert {(kind.tensor, len(kind.layers)) for kind in kinds_of(shallow)[0]} == {
        (1, 1),
        (1, 2),
        (1, 4),
        (2, 1),
        (2, 2),
    }
    assert {len(kind.layers) for kind in kinds_of(machine((16,)))[0] if kind.tensor == 1} == {1, 2, 4, 8, 16}
    assert {len(kind.layers) for kind in kinds_of(machine((15,)))[0] if kind.tensor == 1} == {1, 2, 4, 8}


def test_a_node_is_as_large_as_the_largest_trainer_and_a_replica_has_devices_of_its_own() -> None:
    assert {kind.tensor for kind in kinds_of(machine((2, 4, 2)))[0]} == {1, 2, 4}
    devices = [device for stage in Kind(2, (17, 15)).replica().stages for device in stage.devices]
    assert devices == [Device(0, n) for n in range(4)]


def test_a_job_is_chosen_for_with_its_own_limits() -> None:
    policy = ParallelConfig(max_degree=3, recompute="Full", attention="Ulysses", hardware="a100-80g")
    found = machine_of(MODELS["llama-7b"], policy, BATCH, (8, 8), whole_matrices=True, copies=True)
    assert (found.trainers, found.max_degree, found.recompute, found.attention) == ((8, 8), 3, ("Full",), "Ulysses")
    assert (found.longest, found.whole_matrices, found.copies) == (8192, True, True)
    assert found.memory == device_memory("a100-80g") > 0


def test_a_job_is_chosen_for_by_its_profile_which_says_nothing_of_memory() -> None:
    """Its link to the host is a hundred times slower, and matrix products run at half the rate."""
    policy, shipped = ParallelConfig(hardware="h100-80g", offload="Auto"), load_hardware("h100-80g")
    rates = msgspec.structs.replace(shipped.rates, linear_tflops=shipped.rates.linear_tflops / 2)
    profile = msgspec.structs.replace(shipped, rates=rates, host_gbps=shipped.host_gbps / 100, memory_gib=1.0)
    plain, profiled = (
        machine_of(MODELS["llama-7b"], policy, BATCH, (8,), whole_matrices=False, profile=given)
        for given in (None, profile)
    )
    assert profiled.constants.linear_us_per_token == pytest.approx(2 * plain.constants.linear_us_per_token)
    assert profiled.memory == plain.memory
    share, slower = (dict(each.offload)["None"] for each in (plain, profiled))
    assert share / 100 < slower < share / 50, "matrix products are the most of a short task's forward"


def test_replicas_have_the_tasks_of_the_policy_unless_others_are_named() -> None:
    assert WHOLE.shape(2).tokens is UNSET
    assert WHOLE.shape(2, 4096).tokens == 4096
    assert (machine(()).node, machine(()).devices) == (0, 0)


def test_no_kind_is_proposed_of_which_the_trainers_make_no_replica() -> None:
    uneven = machine((4, 2, 2))  # one tensor group of four: no pipeline of two
    assert {len(kind.layers) for kind in kinds_of(uneven)[0] if kind.tensor == 4} == {1}


@pytest.mark.parametrize("layers", range(1, 13))
def test_the_last_stage_has_no_more_layers_than_another_and_the_others_share_evenly(layers: int) -> None:
    plain = ModelConfig(layers=layers, hidden=512, heads=2, kv_heads=2, feed_forward=2048, vocabulary=64)
    for stages in range(2, layers + 1):
        *others, last = balanced(plain, stages)
        assert (len(others) + 1, sum(others) + last) == (stages, layers)
        assert 1 <= last <= min(others) <= max(others) <= min(others) + 1


def test_a_refusal_for_memory_names_all_that_a_device_needs_and_has() -> None:
    few = machine((2,), memory=60 * 2**30 + 2**29)
    need = (peak_bytes(few, WHOLE, 2, "Full") + RESERVED) / 2**30
    assert memory_refusals(few, [WHOLE], "Full")[WHOLE].why == (
        f"a device needs {need:.1f} GiB with recompute Full, it has 60.5 GiB"
    )


def test_a_kind_that_holds_fewer_tokens_than_a_task_may_have_is_refused_for_memory() -> None:
    roomy = machine((2,), least=4096, memory=0)
    for tokens, refused in ((4096, []), (3840, [WHOLE])):
        tight = replace(roomy, memory=peak_bytes(roomy, WHOLE, 2, "None", tokens) + RESERVED)
        assert list(memory_refusals(tight, [WHOLE], "None")) == refused


def test_all_replicas_of_a_layout_own_parts_of_the_optimizers_state() -> None:
    wide, mixed = Kind(4, (32,)), machine((4, 4))
    each = [peak_bytes(mixed, kind, 5, "None") for kind in (wide, WHOLE)]
    assert fullest(mixed, ((wide, 1), (WHOLE, 4)), "None") == max(each)


def test_whose_copy_a_device_keeps_and_so_whether_a_choice_fits_follows_from_the_nodes_of_trainers() -> None:
    """Of four trainers the first two have a tensor group each, the others two whole replicas. On two nodes a whole replica keeps
    the half of a group's; on a node each those of the fourth trainer keep the whole parts of the third one's."""
    group, kept = Kind(2, (32,)), machine((2,) * 4, copies=True, capacity=64)
    counts = ((group, 2), (WHOLE, 4))
    light, heavy = (fullest(replace(kept, nodes=nodes), counts, "None") for nodes in (("a", "a", "b", "b"), ()))
    elements = sum(prod(spec.shape) for spec in parameter_specs(kept.model, kept.model.vocabulary))
    copies = {ward: 16 * -(-elements // (6 * ward)) for ward in (1, 2)}
    assert heavy - light == pytest.approx(copies[1] - copies[2], rel=1e-3)
    chosen = Alternative("", tuple(kind.shape(count) for kind, count in counts), 1.0)
    tight = replace(kept, memory=light + RESERVED)
    for nodes, holds in (
        (("a", "a", "b", "b"), True),
        (("a", "b", "a", "b"), False),
        (("a", "", "b", ""), False),
        ((), False),
    ):
        assert still_fits(replace(tight, nodes=nodes), chosen) == holds, nodes
    assert still_fits(replace(tight, memory=0), chosen)
    assert still_fits(replace(tight, copies=False), chosen)


def test_each_stage_has_a_layer_though_the_head_takes_longer_than_all_layers() -> None:
    wide = ModelConfig(layers=4, hidden=32, heads=2, kv_heads=2, feed_forward=64, vocabulary=2**17)
    assert loss_layers(wide) > 4
    assert (balanced(wide, 2), balanced(wide, 4)) == ((3, 1), (1, 1, 1, 1))


def test_a_device_may_be_full_to_the_last_byte_beside_what_is_kept_free() -> None:
    plain = machine(memory=10 * 2**30)
    assert fits(plain, plain.memory - RESERVED)
    assert not fits(plain, plain.memory - RESERVED + 1)
    assert fits(machine(memory=0), 2**60)


def test_replicas_of_a_layout_are_in_the_order_in_which_it_finds_room_for_them() -> None:
    deep, shallow, wide = Kind(1, (17, 15)), Kind(1, (32,)), Kind(4, (32,))
    assert by_tensor({shallow: 2, deep: 1, wide: 1}) == ((wide, 1), (deep, 1), (shallow, 2))
    assert by_tensor({shallow: 2, wide: 0}) == ((shallow, 2),)


def test_a_choice_is_described_with_the_next_three_and_the_kinds_whose_tasks_are_smaller() -> None:
    def found(name: str, seconds: float, *tokens: int) -> Alternative:
        return Alternative(name, tuple(WHOLE.shape(2, each) for each in tokens), seconds)

    others = tuple(found(f"{n} x tp1pp1", n / 2, 0) for n in range(3, 7))
    strategy = Strategy(found("2 x tp1pp1", 1.25, 4096, 0), others, steps=4)
    assert described(strategy) == (
        "2 x tp1pp1: 1.25 s a step predicted, by 4 placed steps, tp1pp1 with 4096 tokens a task; beside "
        "3 x tp1pp1 1.5 s, 4 x tp1pp1 2 s, 5 x tp1pp1 2.5 s"
    )
    alone = msgspec.structs.replace(strategy, alternatives=())
    assert described(alone).endswith("4096 tokens a task")


def test_the_elements_of_a_stage_are_those_of_the_fullest_one() -> None:
    short, long = (stage_elements(MODELS["llama-7b"], Kind(1, layers)) for layers in ((1, 30, 1), (1, 29, 2)))
    assert short - long == sum(s.box(0, 1).elements for s in parameter_specs(MODELS["llama-7b"], 32000) if s.place == 5)
