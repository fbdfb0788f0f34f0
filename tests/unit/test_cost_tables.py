"""Measured tables of the cost model: interpolated between points, and no bound above what they allow."""

from __future__ import annotations

import json
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from coxswain.config import ModelConfig, ParallelConfig
from coxswain.cost import constants_for, load_constants
from coxswain.cost.constants import SHIPPED, load_hardware
from coxswain.cost.hardware import Rates, Tables, attention_flops, milliseconds_at, scaled, step_seconds
from coxswain.cost.model import CostModel
from coxswain.cost.tables import Curve
from coxswain.cost.ulysses import HeadExchange
from coxswain.errors import Refused
from coxswain.layout import Device, Layout, Replica, Stage
from coxswain.plan.planners import planner
from coxswain.plan.problem import make_problem
from coxswain.plan.simulate import simulate
from coxswain.plan.step import plan_step
from coxswain.presets import PRESETS

PLAIN = load_constants("h100-80g")
TABLE = ((1000, 5.0), (2000, 16.0), (8000, 150.0))


def with_tables(**tables: tuple[tuple[int, float], ...]) -> CostModel:
    return CostModel(replace(PLAIN, tables=Tables(**tables)))


def test_a_curve_meets_its_points_and_rises_between_and_beyond_them() -> None:
    curve = Curve(TABLE)
    assert curve.seconds([n for n, _ in TABLE]) == pytest.approx([ms / 1000 for _, ms in TABLE])
    assert all(a < b for a, b in pairwise(curve.seconds(np.arange(1, 20_000, 7)).tolist()))
    assert curve.seconds(4000) == pytest.approx(1e-3 * (16 * 150) ** 0.5)  # half way from 2,000 to 8,000 by logarithms


def test_beyond_its_points_a_curve_grows_with_the_square_and_below_them_in_proportion() -> None:
    curve = Curve(TABLE)
    assert curve.seconds(24_000) == pytest.approx(9 * 0.150)
    assert curve.seconds(100) == pytest.approx(0.0005)


@pytest.mark.parametrize("points", [TABLE, TABLE[:1], ((10, 1.0), (20, 1.1), (40, 9.0), (80, 12.0))])
def test_one_length_takes_the_same_without_numpy(points: tuple[tuple[int, float], ...]) -> None:
    curve = Curve(points)
    lengths = [1, 5, *(n + more for n, _ in points for more in (-1, 0, 1)), 30, 3000, 10**6]
    assert [milliseconds_at(points, n) for n in lengths] == pytest.approx((1e3 * curve.seconds(lengths)).tolist())


def test_the_least_seconds_a_square_are_those_of_a_dense_search() -> None:
    curve = Curve(((10, 1.0), (20, 1.1), (40, 9.0), (80, 12.0)))  # a square costs 10, 2.75, 5.6 and 1.9 us: up and down
    lengths = np.linspace(1, 200, 4001)
    dense = np.minimum.accumulate(curve.seconds(lengths) / lengths**2)
    assert np.allclose(curve.least_per_square(lengths), dense, rtol=2e-3)


def test_packs_and_rings_take_measured_seconds() -> None:
    cost = with_tables(attention=TABLE, ring=((500, 1.0), (1000, 3.0)))
    linear = PLAIN.linear_us_per_token * 1e-6
    assert cost.pack_seconds([1000, 2000]) == pytest.approx(0.02 + linear * 3000 + 0.021)
    assert cost.ring_seconds(8000.0, 8.0, True) == pytest.approx(0.02 + linear * 1000 + 8 * 0.003)
    assert cost.packed_ring_seconds([4000, 8000], 8, True) == pytest.approx(0.02 + linear * 1500 + 8 * 0.004)
    assert cost.ring_seconds(2000.0, 1.0, True) == pytest.approx(cost.pack_seconds([2000])), "a ring of one is a pack"


def test_without_a_table_of_rings_their_steps_read_that_of_sequences() -> None:
    both = with_tables(attention=TABLE, ring=TABLE)
    assert with_tables(attention=TABLE).ring_seconds(9000.0, 3.0, True) == both.ring_seconds(9000.0, 3.0, True)


def test_without_tables_every_time_has_the_bits_of_the_formula() -> None:
    cost, s = CostModel(PLAIN), np.array([1.0, 777.0, 65_536.0])
    c, a, kv = cost.linear, cost.attention, cost.kv(True)
    assert cost.work_seconds(s).tolist() == (c * s + a * s * s).tolist() == cost.least_work_seconds(s).tolist()
    u, v = a * (s / 3) * (s / 3), kv * s / 3
    assert cost.ring_seconds(s, 3.0, True).tolist() == (cost.task + c * s / 3 + u + 2 * np.maximum(u, v)).tolist()


@pytest.mark.parametrize("balance", ["makespan", "naive", "static"])
def test_no_plan_ends_before_the_bound_of_any_table(balance: str) -> None:
    """Tables whose ring steps are faster or slower than whole sequences, and whose rates rise and fall."""
    random = np.random.Generator(np.random.PCG64(3))
    for _ in range(60):
        knots = np.unique(random.integers(64, 40_000, 5))
        tables = {}
        for name in ("attention", "ring"):
            seconds = np.cumsum(random.random(knots.size)) * random.choice([1.0, 100.0])
            tables[name] = tuple((int(n), float(ms)) for n, ms in zip(knots, seconds, strict=True))
        cost = with_tables(**tables)
        lengths = np.minimum(random.pareto(0.7, 12) * 500 + 1, 16_000).astype(np.int64)
        problem = make_problem(lengths, replicas=8, capacity=4096, cost=cost, max_degree=8, node_size=4)
        end = simulate(problem, planner(balance)(problem)).makespan
        assert end >= problem.lower_bound() * (1 - 1e-12), (tables, lengths.tolist())


def test_a_bound_that_took_whole_sequences_for_rings_would_be_too_high() -> None:
    """Two halves attend in 2 x 2 x 1 ms, the whole sequence in 100 ms: its own seconds bound nothing."""
    cost = with_tables(attention=((8192, 100.0),), ring=((4096, 1.0),))
    problem = make_problem([8192], replicas=2, capacity=8192, cost=cost, max_degree=2, node_size=2)
    ring = cost.ring_seconds(8192.0, 2.0, True)
    assert problem.lower_bound() <= ring < cost.pack_seconds([8192]) / 2


@pytest.mark.parametrize("balance", ["Makespan", "Naive", "Static"])
def test_no_plan_of_pipelines_ends_before_the_bound_where_ring_steps_are_faster_than_whole_sequences(
    balance: str,
) -> None:
    hardware, model = load_hardware("h100-80g"), ModelConfig(layers=4, hidden=64, heads=4, kv_heads=4, feed_forward=96)
    rates = replace(hardware.rates, attention_table=((64, 1e-3),), ring_table=((64, 1.0),))
    pairs = [[Device(r, d) for d in range(2)] for r in range(4)]
    layout = Layout(tuple(Replica((Stage((a,), 0, 2), Stage((b,), 2, 4))) for a, b in pairs))
    parallel = ParallelConfig(tokens_per_replica=1024, max_degree=4, balance=balance)
    for lengths in ([4000] * 8, [4000] * 3, [4000, 1000, 500] * 4):
        plan = plan_step(lengths, layout, parallel, model, hardware=replace(hardware, rates=rates))
        assert plan.makespan_seconds >= plan.lower_bound_seconds * (1 - 1e-12)


def test_rates_by_tokens_become_seconds_of_a_models_shape() -> None:
    rates = Rates(
        linear_tflops=100, attention_tflops=50, kv_element_bytes=2, inside_node_gbps=1, between_nodes_gbps=1, task_ms=1,
        attention_table=((1000, 25.0), (4000, 50.0)),
    )  # fmt: skip
    shape = PRESETS["llama-7b"]
    table = scaled(rates, shape).tables.attention
    assert table[1][1] == pytest.approx(1e3 * attention_flops(shape) * 4000**2 / 50e12)
    assert CostModel(scaled(rates, shape)).work_seconds([4000]) == pytest.approx(
        CostModel(scaled(replace(rates, attention_table=()), shape)).work_seconds([4000])
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_tables_stay_near_the_fit_where_they_are_long(name: str) -> None:
    constants = constants_for(name, PRESETS["llama-7b"])
    for points in (constants.tables.attention, constants.tables.ring):
        for tokens, ms in points[-2:]:
            assert ms * 1e6 / tokens**2 == pytest.approx(constants.attention_ns_per_token2, rel=0.1)


def test_hopper_devices_ship_measured_tables_and_targets_go_by_none() -> None:
    assert (
        constants_for("h100-80g", PRESETS["llama-7b"]).tables == constants_for("h200-141g", PRESETS["llama-7b"]).tables
    )
    assert constants_for("h100-80g", PRESETS["llama-7b"]).tables.attention and not PLAIN.tables.attention


def test_a_step_sends_gradients_and_weights_once_and_updates_each_parameter() -> None:
    rates = Rates(
        linear_tflops=1, attention_tflops=1, kv_element_bytes=2, inside_node_gbps=6, between_nodes_gbps=3, task_ms=1,
        update_ns_per_parameter=2,
    )  # fmt: skip
    assert step_seconds(rates, 10**9, 1, True) == pytest.approx(2.0)
    assert step_seconds(rates, 10**9, 4, True) == pytest.approx(2.0 + 0.75)
    assert step_seconds(rates, 10**9, 4, False) == pytest.approx(2.0 + 1.5)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ([[100, 1], [100, 2]], "must rise"),
        ([[100, 2], [100, 1]], "must rise"),
        ([[100, 1], [200, 5]], "must rise"),  # 5 x the rate: 200 tokens would end before 100
        ([[0, 1]], "above 0"),
        ([[100, 0]], "above 0"),
        ([[100, -1]], "above 0"),
    ],
)
def test_a_table_that_no_machine_has_is_refused_by_name(tmp_path: Path, table: object, says: str) -> None:
    rates = {
        "linear_tflops": 1, "attention_tflops": 1, "kv_element_bytes": 2, "inside_node_gbps": 1, "between_nodes_gbps": 1,
        "task_ms": 1, "ring_table": table,
    }  # fmt: skip
    file = tmp_path / "odd.json"
    file.write_text(json.dumps({"rates": rates}))
    with pytest.raises(Refused, match=f"odd.json': ring_table: .*{says}"):
        load_constants(str(file))


def test_a_step_of_a_ring_has_at_most_half_of_a_sequence_so_the_bound_counts_no_faster_one() -> None:
    """A token squared takes 1 ns up to 1,000 tokens, and less beyond."""
    cost = with_tables(attention=((1000, 1e6),), ring=((1000, 1.0), (2000, 1.1)))
    linear = 1e-6 * PLAIN.linear_us_per_token
    assert cost.least_work_seconds([2000])[0] == pytest.approx(2000 * linear + 2000**2 * 1e-9)
    assert cost.least_work_seconds([3000])[0] < 3000 * linear + 3000**2 * 0.9e-9


def test_a_table_of_one_point_is_a_table() -> None:
    assert Curve(((1000, 5.0),)).seconds([500, 1000, 2000]) == pytest.approx([0.0025, 0.005, 0.020])
    assert with_tables(attention=((1000, 5.0),)).work_seconds([1000])[0] > 0.005
    assert Curve(((1000, 5.0),)).least_per_square([500, 1000, 4000]) == pytest.approx([1e-8, 5e-9, 5e-9])


@pytest.mark.parametrize(("rate", "refused"), [(3.99, False), (4.0, True)])
def test_the_rate_of_twice_as_many_tokens_is_less_than_four_times_as_high(
    tmp_path: Path, rate: float, refused: bool
) -> None:
    rates = dict.fromkeys(Rates.__struct_fields__[:6], 1) | {"kv_element_bytes": 2}
    file = tmp_path / "odd.json"
    file.write_text(json.dumps({"rates": rates | {"attention_table": [[100, 1], [200, rate]]}}))
    with pytest.raises(Refused, match="must rise") if refused else nullcontext():
        load_constants(str(file))


@pytest.mark.parametrize(
    ("size", "attention"), [(2, 2 * 0.016 / 2), (4, (0.016 * 0.150) ** 0.5 / 4)], ids=["two groups", "one group"]
)
def test_head_groups_attend_to_more_tokens_with_fewer_heads_also_by_tables(size: int, attention: float) -> None:
    """Two groups make two steps of 2,000 tokens, which take 16 ms with all heads; one attends to all 4,000 at once."""
    plain = replace(PLAIN, tables=Tables(attention=TABLE, ring=((1000, 3.0), (2000, 16.0))), inside_node_gbps=1e6)
    cost = CostModel(plain, HeadExchange("Ulysses", size, 1.0))
    linear = 1000 * plain.linear_us_per_token * 1e-6
    for found in (cost.ring_seconds(4000.0, 4.0, True), cost.packed_ring_seconds([4000], 4, True, size, True)):
        assert found == pytest.approx(0.02 + linear + attention, rel=1e-4)
