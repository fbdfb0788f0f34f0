"""The strategy: which kinds of replicas, how many of each, for these lengths and devices."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from coxswain.config import BatchConfig, ModelConfig, ParallelConfig
from coxswain.cost import hardware, load_constants
from coxswain.cost.constants import MODELS, device_memory
from coxswain.cost.memory import RESERVED, Recompute, Workload, peaks
from coxswain.cost.model import CostModel
from coxswain.cost.recompute import repeated
from coxswain.errors import Refused
from coxswain.flops import loss_layers
from coxswain.layout import Device, shaped_layout
from coxswain.models import parameter_specs
from coxswain.plan.head_groups import head_exchange
from coxswain.plan.lengths import draw_lengths
from coxswain.plan.pipelines.operations import ordered
from coxswain.plan.pipelines.simulation import loads
from coxswain.plan.rivals.naive import best_fit
from coxswain.plan.strategy.choose import choose
from coxswain.plan.strategy.costs import kind_cost, stage_constants
from coxswain.plan.strategy.judge import step_seconds, trial_of
from coxswain.plan.strategy.kinds import balanced, capacity_of, kinds_of, most, peak_bytes
from coxswain.plan.strategy.machine import asked, machine_of
from coxswain.plan.strategy.pool import NEVER, Tables, histogram, propose
from coxswain.plan.strategy.values import Kind, Machine, layout_of
from coxswain.plan.values import Slice, Task

SMALL = ModelConfig(layers=4, hidden=256, heads=4, kv_heads=2, feed_forward=512, vocabulary=512)


def machine(
    devices: int = 16, node: int = 8, model: str = "llama-7b", hardware: str = "a100-80g", **more: object
) -> Machine:
    values = {
        "trainers": (node,) * (devices // node), "model": MODELS[model], "constants": load_constants(hardware, model),
        "capacity": 8192, "max_degree": 1024, "memory": device_memory(hardware), **more,
    }  # fmt: skip
    return Machine(**values)  # type: ignore[arg-type]


def steps(name: str = "github", context: int = 32768, tokens: int = 2**20, count: int = 5) -> list[np.ndarray]:
    return [draw_lengths(name, context=context, tokens=tokens, seed=seed) for seed in range(count)]


def test_offload_and_the_exchange_of_heads_are_part_of_what_a_strategy_is_chosen_for() -> None:
    """Without them the hash has the bytes that it had, so a resumed job keeps its choice."""
    batch = BatchConfig(tokens_per_step=2**16, max_sequence_tokens=8192)

    def of(**policy: str) -> Machine:
        parallel = ParallelConfig(hardware="a100-80g", **policy)  # type: ignore[arg-type]
        return machine_of(MODELS["llama-7b"], parallel, batch, (8,), whole_matrices=False)

    plain, moved, exchanged = of(), of(offload="Auto"), of(attention="Auto")
    others = [replace(plain, copies=True), replace(moved, copies=True), of(attention="Ulysses")]
    what = (
        plain.model, batch, "Makespan", plain.constants, plain.capacity, plain.max_degree, plain.memory, plain.recompute, False
    )  # fmt: skip
    hashes = [asked(each, batch, "Makespan") for each in (plain, moved, exchanged)]
    assert hashes[0] == hashlib.sha256(msgspec.json.encode(what)).hexdigest()
    copied = msgspec.json.encode((*what, (), False, "Ring", True))
    assert asked(others[0], batch, "Makespan") == hashlib.sha256(copied).hexdigest()
    assert len({*hashes, *(asked(each, batch, "Makespan") for each in others)}) == 6
    (kind,) = [kind for kind in kinds_of(plain)[0] if kind.tensor == 1 and kind.layers == (32,)]
    least, most_, usual = (peak_bytes(each, kind, 8, "None") for each in (moved, exchanged, plain))
    assert least < usual < most_


# --- the dynamic program -----------------------------------------------------------------------------------------------


def partitions(bins: int) -> Iterator[list[tuple[int, int]]]:
    """All ways to cut bins into intervals."""
    for cuts in range(2 ** (bins - 1)):
        borders = [0, *(i + 1 for i in range(bins - 1) if cuts >> i & 1), bins]
        yield list(pairwise(borders))


def end_of(table: Tables, kind: int, start: int, stop: int, replicas: int) -> float:
    """Seconds of an interval, by the definition."""
    alone = table.alone[kind, stop - 1, replicas - 1]
    work = (table.work[kind, stop] - table.work[kind, start]) / replicas
    return float(max(work, alone) + table.drain[kind] * alone + table.after[kind])


def best_by_force(table: Tables, devices: int) -> float:
    """The earliest end over all partitions into intervals, and all kinds and numbers of replicas for each."""

    def rest(intervals: list[tuple[int, int]], left: int) -> float:
        if not intervals:
            return 0.0
        (start, stop), found = intervals[0], NEVER
        for kind, each in enumerate(table.devices.tolist()):
            for replicas in range(1, min(left // each, int(table.most[kind])) + 1):
                mine = end_of(table, kind, start, stop, replicas)
                if mine < found:
                    found = min(found, max(mine, rest(intervals[1:], left - replicas * each)))
        return found

    return min(rest(intervals, devices) for intervals in partitions(table.alone.shape[1]))


@st.composite
def small_tables(draw: st.DrawFn) -> tuple[Tables, int]:
    """Up to three kinds, four bins and seven devices, with any seconds that more replicas do not lengthen."""
    kinds, bins, devices = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 7))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    each = random.integers(1, min(4, devices + 1), kinds)
    counts = devices // each
    alone = np.sort(random.uniform(0.1, 3, (kinds, bins, counts.max())), axis=2)[:, :, ::-1]
    alone = np.maximum.accumulate(alone, axis=1)  # longer sequences take longer
    alone[random.random(alone.shape) < 0.1] = NEVER
    alone = np.minimum.accumulate(alone, axis=2)
    work = np.concatenate([np.zeros((kinds, 1)), random.uniform(0.1, 9, (kinds, bins)).cumsum(axis=1)], axis=1)
    drain, after = random.integers(0, 3, kinds).astype(float), random.uniform(0, 1, kinds)
    return Tables(each, counts, work, alone, drain, after), devices


@given(small_tables())
@settings(max_examples=150, deadline=None)
def test_the_proposed_pools_end_as_early_as_the_best_of_all_partitions_kinds_and_numbers(
    case: tuple[Tables, int],
) -> None:
    table, devices = case
    best, pools = best_by_force(table, devices), propose(table, devices)
    if best >= NEVER:
        assert not pools
        return
    ends = [end_of(table, p.kind, p.start, p.stop, p.replicas) for p in pools]
    assert max(ends) == pytest.approx(best, rel=1e-6)
    assert sum(int(table.devices[p.kind]) * p.replicas for p in pools) <= devices
    assert [p.start for p in pools] == [0, *(p.stop for p in pools[:-1])]
    assert pools[-1].stop == table.alone.shape[1]


def test_a_histogram_keeps_all_tokens_and_the_longest_sequence_of_the_mean_step() -> None:
    drawn = steps()
    found = histogram(drawn)
    assert found.longest.size <= 32
    assert found.longest[-1] == max(int(lengths.max()) for lengths in drawn)
    assert found.tokens.sum() == pytest.approx(2**20)
    assert found.squares.sum() == pytest.approx(np.mean([(lengths.astype(float) ** 2).sum() for lengths in drawn]))


# --- kinds -------------------------------------------------------------------------------------------------------------


def test_degrees_divide_the_node_and_what_the_model_shares_and_others_are_refused_by_name() -> None:
    kinds, refused = kinds_of(machine(12, 12, model="llama-7b"))
    assert {kind.tensor for kind in kinds} == {1, 2, 4}
    assert {refusal.summary for refusal in refused} == {"tp3", "tp6", "tp12"}
    assert "cannot be shared evenly" in refused[0].why


def test_muon_has_no_tensor_groups() -> None:
    kinds, refused = kinds_of(machine(whole_matrices=True))
    assert {kind.tensor for kind in kinds} == {1}
    assert {(r.summary, r.why) for r in refused} == {(f"tp{t}", "Muon needs whole matrices") for t in (2, 4, 8)}


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_stages_share_all_layers_and_no_even_split_is_faster(stages: int) -> None:
    model = msgspec.structs.replace(SMALL, layers=8, vocabulary=4096)
    layers, loss = balanced(model, stages), loss_layers(model)
    even = Kind(1, (8 // stages,) * stages)
    assert sum(layers) == 8
    assert min(layers) >= 1
    assert max(loads(Kind(1, layers).replica(), loss)) <= max(loads(even.replica(), loss))


def test_the_memory_of_a_kind_is_that_of_the_fullest_device_of_its_layout() -> None:
    asked = machine(16)
    for kind in (Kind(1, (32,)), Kind(2, (17, 15)), Kind(8, (32,))):
        count = most(asked, kind)
        layout = layout_of(((kind, count),), asked.trainers)
        specs = parameter_specs(asked.model, asked.model.vocabulary)
        found = peaks(asked.model, specs, layout, Workload(2, 8192, "Selective"))
        assert peak_bytes(asked, kind, count, "Selective") == max(peak.total for peak in found.values())


def test_copies_count_in_what_fits_and_in_the_memory_of_what_is_chosen() -> None:
    """Two trainers of one device: each keeps the other's half of 12 bytes a parameter, or the other stage's."""
    small = replace(machine(2, 1), capacity=1024)
    small = replace(small, model=msgspec.structs.replace(small.model, layers=20))
    kept, lengths = replace(small, copies=True), [np.array([1024] * 8)]
    plain, found = choose(small, lengths), choose(kept, lengths)
    assert [a.summary for a in (plain.chosen, *plain.alternatives)] == ["1 x tp1pp2", "2 x tp1pp1"]
    assert (found.chosen.summary, found.alternatives) == ("1 x tp1pp2", ())
    assert [refusal.summary for refusal in found.refused] == ["tp1pp1"]
    layout = shaped_layout([Device(0, 0), Device(1, 0)], found.chosen.replicas)
    specs = parameter_specs(small.model, small.model.vocabulary)
    every = peaks(small.model, specs, layout, Workload(2, 1024, copies=True)).values()
    assert plain.chosen.peak_bytes < found.chosen.peak_bytes == max(peak.total for peak in every)
    assert choose(replace(kept, trainers=(2,)), lengths) == choose(replace(small, trainers=(2,)), lengths)


def test_a_capacity_that_memory_gives_fits_and_the_next_does_not() -> None:
    asked = machine(capacity=0)
    kind = Kind(2, (32,))
    tokens = capacity_of(asked, kind, "Selective", 8)
    assert peak_bytes(asked, kind, 8, "Selective", tokens) + RESERVED <= asked.memory
    assert peak_bytes(asked, kind, 8, "Selective", tokens + 256) + RESERVED > asked.memory
    # In this model tokens take more than parameters.
    wide = replace(asked, model=msgspec.structs.replace(SMALL, layers=32, kv_heads=4))
    tight = replace(wide, memory=peak_bytes(wide, kind, 8, "None", 256) + RESERVED)
    assert capacity_of(tight, kind, "None", 8) == 256
    assert capacity_of(replace(asked, memory=0), kind, "Selective", 8) == 2**21, (
        "two million tokens are enough for any task"
    )


# --- costs -------------------------------------------------------------------------------------------------------------


def test_one_device_with_the_whole_model_has_the_machine_s_constants() -> None:
    asked = machine()
    assert stage_constants(asked, Kind(1, (32,)), "None") == asked.constants


@pytest.mark.parametrize("kind", [Kind(2, (32,)), Kind(8, (32,)), Kind(1, (16, 16)), Kind(4, (8, 8, 8, 8))])
def test_no_kind_computes_faster_than_its_devices_and_sums_on_a_slow_link_take_longer(kind: Kind) -> None:
    asked = machine()
    cost = kind_cost(asked, kind, "None").tasks
    whole = kind_cost(asked, Kind(1, (32,)), "None").tasks
    assert cost.linear * kind.devices >= whole.linear
    assert cost.attention * kind.devices >= whole.attention
    slow = replace(
        asked, constants=msgspec.structs.replace(asked.constants, inside_node_gbps=2.5, between_nodes_gbps=0.5)
    )
    assert kind_cost(slow, kind, "None").tasks.linear > cost.linear


def test_recompute_repeats_what_it_drops() -> None:
    asked, kind = machine(), Kind(2, (32,))
    none, selective, full = (kind_cost(asked, kind, mode).tasks for mode in ("None", "Selective", "Full"))
    assert selective.linear == full.linear > none.linear
    assert selective.attention == none.attention < full.attention


@pytest.mark.parametrize("recompute", ["None", "Selective", "Full"])
def test_a_layout_is_judged_with_the_exchanges_of_heads_that_its_plans_would_have(recompute: Recompute) -> None:
    """One sequence a step, which all replicas share, over links that everything waits for: three hops of keys and values, or
    3/4 of these and of queries and outputs, four times as wide."""
    asked = machine(4, 4, model="llama-7b", recompute=(recompute,), memory=0)
    asked = replace(
        asked, constants=msgspec.structs.replace(asked.constants, inside_node_gbps=0.5, between_nodes_gbps=0.5)
    )
    layout, kind = layout_of(((Kind(1, (32,)), 4),), (4,)), Kind(1, (32,))
    seconds = {}
    for attention in ("Ring", "Ulysses", "Auto"):
        own = replace(asked, attention=attention)  # type: ignore[arg-type]
        trial = trial_of(own, ((kind, 4),), recompute)
        judged = step_seconds(own, trial, [np.array([32_768])], "Makespan") - trial.costs[0].after
        exchange = head_exchange(attention, own.model, layout, [0] * 4, recompute)  # type: ignore[arg-type]
        cost = CostModel(repeated(own.constants, recompute), exchange)
        assert judged == pytest.approx(float(cost.ring_seconds(32_768.0, 4.0, True)))
        seconds[attention] = judged
    assert seconds["Auto"] <= min(seconds["Ring"], seconds["Ulysses"]) < max(seconds["Ring"], seconds["Ulysses"])
    assert (seconds["Ulysses"] < seconds["Ring"]) == (recompute != "Selective")  # which repeats exchanges, and no hop
    assert choose(replace(asked, attention="Auto"), [np.array([32_768])]).chosen.seconds > 0


def test_replicas_of_a_layout_exchange_what_all_of_its_devices_have() -> None:
    asked = replace(machine(16), attention="Ulysses")  # 8 key heads
    one, two = Kind(1, (32,)), Kind(4, (32,))
    alone, beside = (
        trial_of(asked, counts, "None").costs[-1].tasks.exchange for counts in (((one, 8),), ((two, 2), (one, 8)))
    )
    assert alone is not None and beside is not None
    assert (alone.key_heads, beside.key_heads) == (8, 2)


@pytest.mark.parametrize("stages", [2, 4])
def test_the_time_of_a_pipeline_is_that_of_its_simulated_stages(stages: int) -> None:
    """Sum and (p - 1) times the longest, beside all operations in virtual time: tasks of 2,048 to 8,192 tokens."""
    asked = machine(stages, stages)
    kind = Kind(1, balanced(asked.model, stages))
    cost, lengths = kind_cost(asked, kind, "None"), np.array([2048, 4096, 8192] * 4)
    packs = best_fit(lengths.tolist(), list(range(12)), 8192)
    tasks = [
        Task(
            i,
            "pack",
            (0,),
            tuple(Slice(0, q, 0, int(lengths[q])) for q in pack),
            cost.tasks.pack_seconds(lengths[[*pack]]),
        )
        for i, pack in enumerate(packs)
    ]
    simulated = ordered(layout_of(((kind, 1),), asked.trainers), tasks, loss_layers(asked.model)).seconds
    found = step_seconds(asked, trial_of(asked, ((kind, 1),), "None"), [lengths], "Naive")
    assert found - cost.after == pytest.approx(simulated, rel=0.15)


# --- the choice --------------------------------------------------------------------------------------------------------


def test_the_chosen_layout_is_the_fastest_that_was_placed_fits_memory_and_holds_the_longest_sequence() -> None:
    asked = machine(64, model="llama-13b", hardware="a100-40g", recompute=("None", "Selective", "Full"))
    found = choose(asked, steps(tokens=2**22))
    placed = [a for a in found.alternatives if a.placed]
    assert placed
    assert all(a.seconds >= found.chosen.seconds for a in placed)
    assert all(a.peak_bytes + RESERVED <= asked.memory for a in (found.chosen, *found.alternatives))
    assert {"tp1pp1", "tp2pp1"} <= {refusal.summary for refusal in found.refused}
    assert sum(shape.count * sum(s.tensor for s in shape.stages) for shape in found.chosen.replicas) <= 64


@pytest.mark.parametrize("longest", [0, 2048])
def test_a_layout_that_has_no_groups_for_the_longest_sequence_is_refused_and_others_are_chosen(longest: int) -> None:
    """A mesh of 3 replicas that hold 1024 tokens each has groups of 1 or 3."""
    sampled = [np.array([1024] * 11 + [1024 if longest else 2048])]
    asked = replace(machine(6, 6, capacity=1024, max_degree=2, longest=longest), model=SMALL)
    found = choose(asked, sampled, "Static")
    assert found.chosen.summary == "6 x tp1pp1"
    why = {refusal.summary: refusal.why for refusal in found.refused}["3 x tp1pp2"]
    assert why.startswith("balance Static: 2048 tokens need a mesh of 3 replicas")
    assert "3 x tp1pp2" not in {a.summary for a in found.alternatives}


def test_a_longest_sequence_that_was_not_sampled_refuses_layouts_with_too_few_replicas_for_it() -> None:
    asked, sampled = replace(machine(6, 6, capacity=1024, max_degree=6), model=SMALL), [np.array([1024] * 8)]
    for longest, beside in ((0, None), (2048, "a sequence of 2048 tokens does not fit: equal replicas hold 1024")):
        found = choose(replace(asked, longest=longest), sampled)
        assert {refusal.summary: refusal.why for refusal in found.refused}.get("1 x tp1pp4") == beside


def test_a_layout_is_chosen_for_makespan_where_the_balance_has_groups_on_none() -> None:
    asked = replace(machine(3, 3, capacity=1024, max_degree=2, longest=2048), model=SMALL)
    sampled = [np.array([2048, *[1024] * 4])]
    assert choose(asked, sampled, "Static") == choose(asked, sampled, "Makespan")


def test_a_balance_that_is_not_known_is_refused_and_not_taken_for_one_that_fits_no_layout() -> None:
    with pytest.raises(Refused, match="balance 'Nearly': not known"):
        choose(replace(machine(2, 2, capacity=1024), model=SMALL), [np.array([512, 512])], "Nearly")


def test_what_was_not_placed_is_estimated_near_what_placing_it_says() -> None:
    asked, drawn = machine(16), steps(tokens=2**18, count=2)
    placed = {a.summary: a.seconds for a in choose(asked, drawn, placed=99).alternatives}
    estimates = [a for a in choose(asked, drawn, placed=1).alternatives if not a.placed]
    assert len(estimates) > 2
    for estimate in estimates:
        assert 0.7 <= estimate.seconds / placed[estimate.summary] <= 1.05, estimate.summary


def test_layouts_are_judged_with_tasks_as_large_as_the_policy_has_though_all_sequences_are_shorter() -> None:
    asked, drawn = machine(2, 2, memory=0), [np.array([512] * 64)]
    chosen = choose(asked, drawn).chosen
    counts = ((Kind(1, (32,)), 2),)
    assert chosen.summary == "2 x tp1pp1"
    assert chosen.seconds == step_seconds(asked, trial_of(asked, counts, chosen.recompute), drawn, "Makespan")


def test_the_same_lengths_and_devices_give_the_same_strategy_bytes() -> None:
    asked, drawn = machine(32), steps()
    assert msgspec.json.encode(choose(asked, drawn)) == msgspec.json.encode(choose(asked, list(drawn)))


def test_kinds_are_mixed_where_long_sequences_need_room_that_short_ones_do_not() -> None:
    """Without rings (one replica a sequence) each kind holds what its memory does, as in Hydraulis."""
    asked = machine(32, model="llama-7b", hardware="a100-40g", capacity=0, max_degree=1, recompute=("Selective",))
    found = choose(asked, steps("github", context=65536, tokens=2**21))
    equal = [a for a in found.alternatives if len(a.replicas) == 1 and a.placed]
    assert len(found.chosen.replicas) > 1
    assert found.chosen.seconds < min(a.seconds for a in equal)


def test_a_kind_whose_memory_holds_fewer_tokens_than_the_policy_has_may_have_its_own() -> None:
    """13 G parameters without recompute: 16,384 tokens are too many for all but tensor groups of eight."""
    one = machine(32, model="llama-13b", capacity=16_384)
    own, drawn = replace(one, least=4096), steps("github", context=65_536, tokens=2**20, count=2)
    equal, found = choose(one, drawn), choose(own, drawn)
    assert {shape.tokens for a in (equal.chosen, *equal.alternatives) for shape in a.replicas} == {UNSET}
    assert found.chosen.seconds < equal.chosen.seconds
    for each in (found.chosen, *found.alternatives):
        assert each.peak_bytes + RESERVED <= own.memory
        assert all(shape.tokens is UNSET or 4096 <= shape.tokens < 16_384 for shape in each.replicas)
    assert len({shape.tokens for a in found.alternatives for shape in a.replicas}) > 2
    enough = machine(16, model="llama-7b", hardware="h200-141g", capacity=4096)
    drawn = steps(context=16_384, tokens=2**18, count=2)
    assert choose(replace(enough, least=2048), drawn) == choose(enough, drawn)


def test_a_mixed_layout_is_refused_where_so_few_replicas_share_the_state_that_a_kind_holds_too_few_tokens() -> None:
    """Eight pipelines of two devices hold 4,608 tokens of a task; four, beside a group of eight, hold 4,096."""
    name, drawn = "1 x tp8pp1 + 4 x tp1pp2", steps(context=16_384, tokens=2**19, count=1)
    for least, own in ((4096, [17_664, 4096]), (4097, None)):
        asked = machine(16, model="llama-13b", capacity=65_536, least=least, max_degree=1)
        found = choose(asked, drawn, placed=1)
        tokens = {a.summary: [shape.tokens for shape in a.replicas] for a in (found.chosen, *found.alternatives)}
        assert tokens.get(name) == own
        why = {refusal.summary: refusal.why for refusal in found.refused}.get(name)
        assert why == (None if own else "memory holds 4096 tokens of a task, at least 4097 are wanted")
        assert capacity_of(asked, Kind(1, (20, 20)), "None", 8) == 4608


def test_devices_that_a_proposal_leaves_over_are_proposed_as_more_replicas_of_its_smallest_kind() -> None:
    """Of 32 devices it leaves nine."""
    asked = machine(32, 4, capacity=65_536, least=256, max_degree=1, recompute=("Selective",))
    found = choose(asked, steps(context=65_536, tokens=2**19, count=1), placed=1)
    names = {a.summary for a in (found.chosen, *found.alternatives)}
    assert {f"1 x tp4pp1 + 1 x tp2pp2 + 5 x tp2pp1 + {n} x tp1pp1" for n in (5, 14)} <= names


def test_a_job_whose_steps_are_shorter_than_the_least_task_of_a_kind_is_not_refused_for_that() -> None:
    """As a coordinator asks: the usual 8,192 tokensPerReplica, and steps that never fill a task of 4,096 tokens."""
    model, parallel = MODELS["llama-7b"], ParallelConfig(tokens_per_replica=8192, max_degree=8, hardware="h100-80g")
    batch = BatchConfig(tokens_per_step=2048, max_sequence_tokens=1024)
    asked = machine_of(model, parallel, batch, (8, 8), whole_matrices=False, least=4096)
    found = choose(asked, [np.array([1024, 600, 424])])
    assert all(shape.tokens is UNSET for a in (found.chosen, *found.alternatives) for shape in a.replicas)


def test_a_model_that_no_power_of_two_of_stages_holds_gets_another_number_of_them() -> None:
    found = choose(
        machine(24, model="llama-70b", hardware="h100-80g", recompute=("Selective",)),
        steps(context=8192, tokens=2**16, count=1),
    )
    assert {len(shape.stages) for shape in found.chosen.replicas} & {3, 6, 12}


def test_where_nothing_fits_the_refusal_names_the_kinds_their_needs_and_the_way_out() -> None:
    with pytest.raises(Refused, match=r"tp1pp1: a device needs .* use more devices, recompute") as refused:
        choose(machine(8, model="llama-70b"), steps(tokens=2**18))
    assert refused.value.reason == "NoStrategy"
    with pytest.raises(Refused, match="sequences of 32768 tokens"):
        choose(machine(8, max_degree=1), steps(tokens=2**18))


@pytest.mark.slow  # a time on an idle machine: beside other tests, or on a slower processor, it fails without a fault
@pytest.mark.parametrize(("devices", "limit"), [(64, 1.0), (1024, 10.0)])
def test_a_strategy_takes_a_second_for_64_devices_and_ten_for_1024(devices: int, limit: float) -> None:
    asked, drawn = machine(devices, hardware="h100-80g"), steps("byted", 262144 // 2, 32768 * devices)
    begin = time.process_time()
    choose(asked, drawn)
    assert time.process_time() - begin < limit


def test_measured_tables_are_those_of_a_stage_s_part() -> None:
    measured = msgspec.structs.replace(
        load_constants("a100-80g"),
        tables=hardware.Tables(attention=((1024, 10.0), (8192, 600.0)), ring=((1024, 20.0),)),
    )
    asked = machine(constants=measured)
    whole, half = (kind_cost(asked, kind, "None").tasks for kind in (Kind(1, (32,)), Kind(1, balanced(asked.model, 2))))
    share = half.attention / whole.attention
    at = np.array([1024.0, 8192.0])
    assert 0.5 <= share < 0.6
    assert half.work_seconds(at) - half.linear * at == pytest.approx([0.01 * share, 0.6 * share])
    assert whole.constants == measured
    assert half.constants.tables.ring[0][1] == pytest.approx(20 * share)
