"""The cost model and its constants."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from coxswain.config import ModelConfig
from coxswain.cost import constants_for, load_constants, peak_tflops
from coxswain.cost.constants import SHIPPED, Rates, device_memory, load_hardware
from coxswain.cost.error import Error, error_of
from coxswain.cost.hardware import Tables
from coxswain.cost.memory import Recompute
from coxswain.cost.model import CostModel
from coxswain.cost.recompute import repeated
from coxswain.errors import Refused
from coxswain.flops import linear_flops, loss_layers, step_flops, utilisation
from coxswain.models import parameter_specs
from coxswain.presets import PRESETS

H100 = CostModel(load_constants("h100-80g"))


def test_the_shipped_h100_numbers_are_those_of_the_targets() -> None:
    c = H100.constants
    assert (c.linear_us_per_token, c.attention_ns_per_token2, c.kv_bytes_per_token) == (77.3, 2.87, 393216)
    assert (c.inside_node_gbps, c.between_nodes_gbps, c.task_ms) == (300, 50, 20)


def test_the_shape_of_the_7b_model_gives_the_shipped_numbers_within_a_percent() -> None:
    shape = ModelConfig(layers=32, hidden=4096, heads=32, kv_heads=8, feed_forward=11008, vocabulary=32000)
    derived, shipped = constants_for("h100-80g", shape), H100.constants
    for field in set(shipped.__struct_fields__) - {"tables"}:
        assert getattr(derived, field) == pytest.approx(getattr(shipped, field), rel=0.01), field


def test_heads_of_their_own_size_cost_what_they_compute_and_send() -> None:
    shape = PRESETS["qwen3-0.6b"]  # its heads have twice the size of hidden / heads
    own, derived = constants_for("h100-80g", shape), constants_for("h100-80g", replace(shape, head_size=0))
    assert own.kv_bytes_per_token == 2 * derived.kv_bytes_per_token
    assert own.attention_ns_per_token2 == pytest.approx(2 * derived.attention_ns_per_token2)
    assert loss_layers(shape) < loss_layers(replace(shape, head_size=0))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_file_serves_every_known_model(name: str) -> None:
    assert load_constants(name, "llama-70b").linear_us_per_token > load_constants(name, "llama-7b").linear_us_per_token


@pytest.mark.parametrize(
    ("name", "peak"),
    [("h100-80g", 989.0), ("h200-141g", 989.0), ("a100-80g", 312.0), ("a100-40g", 312.0), ("cpu", 0.0)],
)
def test_the_peak_is_that_of_the_data_sheet_and_unknown_on_cpu(name: str, peak: float) -> None:
    assert peak_tflops(name) == peak


def test_model_flops_are_those_of_palms_formula() -> None:
    """Parameters by hand: an embedding that is only looked up does not count, a tied one counts once, as the head."""
    shape = ModelConfig(layers=2, hidden=8, heads=2, kv_heads=1, feed_forward=12)
    layer = 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * 12 + 2 * 8
    parameters = 2 * layer + 8 + 64 * 8
    assert step_flops(shape, 64, [10]) == 10 * (6 * parameters + 12 * 2 * 8 * 10)
    assert step_flops(replace(shape, tied_head=True), 64, [10]) == step_flops(shape, 64, [10])
    assert step_flops(shape, 64, [10, 30]) == step_flops(shape, 64, [10]) + step_flops(shape, 64, [30])


def test_the_7b_model_has_its_published_flops_a_token() -> None:
    """Touvron et al.: 6.74 G parameters, 131 M of them the embedding."""
    shape = ModelConfig(layers=32, hidden=4096, heads=32, kv_heads=32, feed_forward=11008)
    attention = 12 * 32 * 4096 * 2048
    assert step_flops(shape, 32000, [2048]) / 2048 == pytest.approx(6 * (6.738e9 - 131e6) + attention, rel=1e-4)


def test_attention_counts_the_heads_own_width_where_it_is_not_hidden() -> None:
    """By hand, for Qwen 3 0.6B: 28 layers, 16 heads of 128 elements, hidden 1024."""
    shape, s = PRESETS["qwen3-0.6b"], 4096
    linear = linear_flops(parameter_specs(shape, 64))
    assert step_flops(shape, 64, [s]) - s * linear == 12 * 28 * 16 * 128 * s * s


def test_utilisation_is_a_share_of_all_devices_peak_and_unknown_without_one() -> None:
    assert utilisation(4e15, seconds=2.0, devices=4, peak_tflops=1000.0) == 0.5
    assert utilisation(4e15, seconds=2.0, devices=4, peak_tflops=0.0) is None
    assert utilisation(4e15, seconds=0.0, devices=4, peak_tflops=1000.0) is None


@pytest.mark.parametrize("field", ["peak_tflops", "memory_gib", "host_gbps"])
def test_a_negative_figure_of_a_device_is_refused_and_zero_is_not(tmp_path: Path, field: str) -> None:
    path = tmp_path / "mine.json"
    for value in (0, -1, 1e308):
        content = {"rates": dict.fromkeys(Rates.__struct_fields__[:6], 4), field: value}
        path.write_text(json.dumps(content))
        with pytest.raises(Refused, match=f"{field} is {value:g}".replace("+", ".")) if value else nullcontext():
            peak_tflops(str(path))


@pytest.mark.parametrize(
    ("recompute", "linear", "attention", "sent"),
    [("None", 1.0, 1.0, 1.0), ("Selective", 4 / 3, 1.0, 1.0), ("Full", 4 / 3, 4.5 / 3.5, 4 / 3)],
)
def test_recompute_repeats_linear_work_and_full_recompute_attention_and_hops_too(
    recompute: Recompute, linear: float, attention: float, sent: float
) -> None:
    plain = replace(H100.constants, tables=Tables(attention=((8, 2.0),), ring=((4, 1.0),)))
    found = repeated(plain, recompute)
    for name, factor in (
        ("linear_us_per_token", linear),
        ("attention_ns_per_token2", attention),
        ("kv_bytes_per_token", sent),
    ):
        assert getattr(found, name) == pytest.approx(factor * getattr(plain, name)), name
    assert found.tables.attention == ((8, pytest.approx(2 * attention)),)
    assert found.tables.ring == ((4, pytest.approx(attention)),)
    assert found.task_ms == plain.task_ms


def test_a_step_without_a_prediction_or_a_time_says_nothing_of_the_error() -> None:
    assert error_of([(0.0, 1.0), (1.0, 0.0), (1.2, 1.0)]) == Error(pytest.approx(0.2), pytest.approx(0.2), 1)
    assert error_of([(0.0, 1.0)]) == Error(0.0, 0.0, 0)


def test_a_pack_costs_its_sequences_and_one_task() -> None:
    assert H100.pack_seconds([1000, 2000]) == pytest.approx(0.02 + 77.3e-6 * 3000 + 2.87e-9 * 5e6)


def test_a_ring_bound_by_travel_waits_for_keys_and_values() -> None:
    s, degree = 64_000.0, 64.0  # 1,000 tokens a member: less than travel between nodes takes
    travel = 393216 * 1000 / 50e9
    want = 0.02 + 77.3e-6 * 1000 + 2.87e-9 * 1e6 + 63 * travel
    assert H100.ring_seconds(s, degree, False) == pytest.approx(want)
    assert H100.ring_seconds(s, degree, True) < want


def test_ring_times_of_arrays_equal_those_of_numbers() -> None:
    s, d = np.array([9000.0, 70000.0]), np.array([2.0, 16.0])
    assert H100.ring_seconds(s, d, False).tolist() == [
        H100.ring_seconds(a, b, False) for a, b in zip(s, d, strict=True)
    ]


def test_a_ring_of_one_sequence_costs_what_a_packed_ring_of_it_costs() -> None:
    assert H100.packed_ring_seconds([50_000], 8, True) == pytest.approx(H100.ring_seconds(50_000.0, 8.0, True))


def test_the_bound_is_work_over_speed_or_the_longest_sequence() -> None:
    even = H100.lower_bound([8192] * 8, [1.0] * 4, 8192, 4, 8)
    assert even == pytest.approx(2 * H100.pack_seconds([8192]))
    long = H100.lower_bound([32768, 1], [1.0] * 8, 8192, 4, 8)
    assert long == pytest.approx(H100.ring_seconds(32768.0, 4.0, True))


def test_the_bound_falls_with_speeds() -> None:
    assert H100.lower_bound([8192] * 8, [2.0] * 4, 8192, 4, 8) == pytest.approx(H100.pack_seconds([8192]))
    mixed = H100.lower_bound([16384], [1.0, 0.5], 8192, 2, 8)
    assert mixed == pytest.approx(2 * H100.ring_seconds(16384.0, 2.0, True))


def test_a_plain_constants_file_serves_any_model(tmp_path: Path) -> None:
    plain = {"linear_us_per_token": 1, "attention_ns_per_token2": 1, "kv_bytes_per_token": 8, "inside_node_gbps": 1}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({**plain, "between_nodes_gbps": 1, "task_ms": 0}))
    assert load_constants(str(file), "whatever").kv_bytes_per_token == 8


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("{", "truncated"),
        ('{"linear_us_per_token": 1}', "missing required field"),
        ('{"rates": {"tflops": 3}}', "unknown field"),
    ],
    ids=["missing", "cut", "short", "unknown"],
)
def test_a_bad_hardware_file_is_refused_by_name(tmp_path: Path, content: str | None, says: str) -> None:
    file = tmp_path / "bad.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(Refused, match=says) as refused:
        load_constants(str(file))
    assert "bad.json" in refused.value.message


def test_a_constant_of_zero_is_refused(tmp_path: Path) -> None:
    constants = {**msgspec.to_builtins(H100.constants), "inside_node_gbps": 0.0}
    file = tmp_path / "zero.json"
    file.write_text(json.dumps(constants))
    with pytest.raises(Refused, match="inside_node_gbps is 0"):
        load_constants(str(file))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"linear_tflops": 1e-320}, "linear_tflops is 1e-320; it must be at least 1e-12 and at most 1e.12"),
        ({"between_nodes_gbps": 1e300}, "between_nodes_gbps is 1e.300; it must be at least 1e-12"),
        ({"attention_table": [[1, 1.0], [10**200, 5.0]]}, "Expected `int` <= 1000000000000"),
        (
            {"attention_table": [[1000, 1e-300]]},
            "attention_table: it has 1e-300; numbers must be at least 1e-12 and at most 1e.12",
        ),
        (
            {"ring_table": [[2000, 1.1e12]]},
            "ring_table: it has 1100000000000.0; numbers must be at least 1e-12",
        ),
    ],
)
def test_rates_beyond_all_bounds_are_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    """Seconds of a step would be infinite, or 0."""
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"rates": {**msgspec.to_builtins(load_hardware("cpu").rates), **change}}))
    with pytest.raises(Refused, match=says):
        load_constants(str(file))


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Refused, match=r"'gpt-9'.*llama-7b"):
        load_constants("cpu", "gpt-9")


@pytest.mark.parametrize("table", ["attention", "ring"])
def test_milliseconds_of_a_model_beyond_all_bounds_are_refused_and_the_bounds_themselves_are_not(
    tmp_path: Path, table: str
) -> None:
    file, plain = tmp_path / "mine.json", msgspec.to_builtins(H100.constants)
    for milliseconds, refused in ((1e-12, False), (1e12, False), (9e-13, True), (1.1e12, True)):
        file.write_text(json.dumps({**plain, "tables": {table: [[1000, milliseconds]]}}))
        says = rf"tables.{table}: it has .*; numbers must be at least 1e-12 and at most 1e.12"
        with pytest.raises(Refused, match=says) if refused else nullcontext():
            load_constants(str(file))


PLAIN = msgspec.to_builtins(H100.constants)
RATES = msgspec.to_builtins(load_hardware("cpu").rates)


def written(path: Path, content: object) -> str:
    file = path / "mine.json"
    file.write_text(json.dumps(content))
    return str(file)


def test_a_model_of_a_file_comes_before_one_of_its_shape_and_bytescales_shapes_before_presets(tmp_path: Path) -> None:
    mine = written(tmp_path, {"rates": RATES, "models": {"llama-13b": PLAIN, "own": PLAIN}})
    assert load_constants(mine, "llama-13b") == load_constants(mine, "own") == H100.constants
    assert PRESETS["llama-7b"].kv_heads == 32
    assert load_constants(mine, "llama-7b").kv_bytes_per_token == 3 * 32 * 2 * 8 * 128 * 4, "8 key-value heads"
    assert load_constants(mine, "qwen3-0.6b") == constants_for(mine, PRESETS["qwen3-0.6b"])
    with pytest.raises(Refused, match=r"'gpt-9'.*llama-70b.*own.*qwen3-0.6b"):
        load_constants(mine, "gpt-9")


def test_constants_of_one_model_say_nothing_of_a_device(tmp_path: Path) -> None:
    mine = written(tmp_path, PLAIN)
    assert (peak_tflops(mine), device_memory(mine)) == (0.0, 0)
    assert constants_for(mine, PRESETS["qwen3-0.6b"]) == H100.constants
    with pytest.raises(Refused, match=r"mine\.json': constants of one model; a file with rates is needed here"):
        load_hardware(mine)


def test_the_memory_of_a_device_is_in_powers_of_two(tmp_path: Path) -> None:
    assert device_memory("h100-80g") == 80 * 2**30
    assert device_memory(written(tmp_path, {"rates": RATES, "memory_gib": 1.5})) == 3 * 2**29


@pytest.mark.parametrize("field", ["task_ms", "update_ns_per_parameter", "linear_tflops", "between_nodes_gbps"])
def test_what_a_task_and_an_update_take_besides_may_be_nothing_and_no_rate_may(tmp_path: Path, field: str) -> None:
    mine = written(tmp_path, {"rates": RATES | {field: 0}})
    with (
        nullcontext()
        if field in ("task_ms", "update_ns_per_parameter")
        else pytest.raises(Refused, match=f"{field} is 0")
    ):
        load_constants(mine)


def test_a_number_at_a_bound_is_no_reason_to_refuse_a_file_and_one_beyond_it_is(tmp_path: Path) -> None:
    for value, refused in ((1e-12, False), (1e12, False), (9e-13, True), (1.1e12, True)):
        for content in ({**PLAIN, "task_ms": value}, {"rates": RATES | {"task_ms": value}}):
            with pytest.raises(Refused, match="task_ms is") if refused else nullcontext():
                load_constants(written(tmp_path, content))
        for field in ("peak_tflops", "memory_gib", "host_gbps"):
            with pytest.raises(Refused, match=f"{field} is") if value > 1e12 else nullcontext():
                load_constants(written(tmp_path, {"rates": RATES, field: value}))


def test_the_constants_of_each_model_of_a_file_are_checked(tmp_path: Path) -> None:
    for wrong in ({"linear_us_per_token": 0}, {"tables": {"attention": [[2, 1], [1, 2]]}}):
        mine = written(tmp_path, {"rates": RATES, "models": {"good": PLAIN, "own": {**PLAIN, **wrong}}})
        with pytest.raises(Refused, match=r"linear_us_per_token is 0|tables\.attention: tokens and times must rise"):
            load_constants(mine, "good")


def test_a_path_that_can_be_none_is_refused_with_the_names_that_can() -> None:
    for name, why in (("no\0where", "null"), ("nowhere", "No such file or directory; use one of a100-40g")):
        with pytest.raises(Refused, match=why) as refused:
            load_constants(name)
        assert refused.value.reason == "BadHardware" and "or the path of a constants file" in refused.value.message


def test_the_error_is_of_the_prediction_beside_what_was_measured_its_median_and_what_95_in_100_stay_below() -> None:
    assert error_of([(1.0, 2.0)] * 3).p50 == 0.5 and error_of([(2.0, 1.0)] * 3).p50 == 1.0
    found = error_of([(1.0 + n / 100, 1.0) for n in range(101)])
    assert (found.p50, found.p95, found.count) == (pytest.approx(0.5), pytest.approx(0.95), 101)


def test_times_next_to_nothing_say_nothing_of_the_error() -> None:
    assert error_of([(1e-10, 1.0), (1.0, 1e-10), (2e-9, 1e-9)]) == Error(pytest.approx(1.0), pytest.approx(1.0), 1)


def test_no_sequence_takes_no_time() -> None:
    assert H100.lower_bound([], [1.0], 8192, 1, 8) == 0.0


def test_the_bound_has_a_task_for_each_capacity_of_tokens_that_is_begun() -> None:
    """Not one for each sequence: a pack may have many."""
    work = float(H100.work_seconds([10] * 820).sum())
    for count, packs in ((819, 1), (820, 2)):
        bound = H100.lower_bound([10] * count, [1.0], 8192, 1, 8)
        assert bound == pytest.approx(work * count / 820 + packs * H100.task)


def test_a_ring_of_the_longest_sequence_has_as_many_members_as_hold_it_at_least() -> None:
    for tokens, least in ((8192, 1), (8193, 2), (16384, 2)):
        rings = [float(H100.ring_seconds(float(tokens), float(d), True)) for d in (1, 2, 3, 4)]
        assert H100.lower_bound([tokens], [1.0] * 4, 8192, least, 8) == pytest.approx(max(rings[least - 1], 0))
        assert H100.lower_bound([tokens], [1.0] * 4, 8192, 4, 8) == pytest.approx(min(rings[least - 1 :]))


def test_a_ring_of_the_longest_sequence_is_on_the_fastest_replicas_and_within_a_node_where_one_holds_it() -> None:
    speeds = [0.25, 1.0, 0.25, 0.5]
    slow = 2 * H100.ring_seconds(60_000.0, 2.0, True)
    assert H100.lower_bound([60_000], speeds, 30_000, 2, 2) == pytest.approx(slow)
    assert H100.lower_bound([60_000], speeds, 30_000, 2, 1) == pytest.approx(
        2 * H100.ring_seconds(60_000.0, 2.0, False)
    )


def test_one_replica_bounds_no_sequence_that_it_cannot_hold_though_it_would_be_faster_than_a_ring() -> None:
    slow = CostModel(replace(H100.constants, inside_node_gbps=0.01))
    alone, ring = (float(slow.ring_seconds(8193.0, degree, True)) for degree in (1.0, 2.0))
    assert slow.lower_bound([8193], [1.0] * 4, 8192, 2, 8) == pytest.approx(ring) and ring > alone
