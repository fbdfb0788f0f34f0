"""Any number of replicas and any legal plan train like one plain process."""

from __future__ import annotations

import functools
from itertools import cycle, islice

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from coxswain.config import ModelConfig, ParallelConfig
from coxswain.layout import Device, uniform_layout
from coxswain.plan.planners import BALANCES
from coxswain.plan.step import plan_step
from coxswain_train.engine.schedule import learning_rate
from coxswain_train.model.llama import Llama
from tests.distributed import reference, training
from tests.distributed.plans import Plan, random_plan
from tests.distributed.ranks import RankFailed, run_ranks
from tests.distributed.reference import Stream

STEPS = 10
STREAM = Stream(lengths=(1, 2, 3, 7, 16, 29, 41), vocabulary=training.VOCABULARY)
RATES = [learning_rate(training.OPTIMIZER, step, STEPS) for step in range(STEPS)]
TIED = replace(training.MODEL, tied_head=True, kv_heads=4)
BIASED = replace(training.MODEL, qkv_bias=True, qk_norm=True, head_size=12)

# (replicas, degree of the rings (0: any), idle replicas): pairwise. Every rank of a world computes, so few are quick.
MORE = [(4, 3, (0,)), (5, 5, ()), (8, 8, ())]
WORLDS = [
    *((1, 0, ()), (2, 2, ()), (3, 0, ()), (3, 3, (1,)), (8, 7, (3,))),
    *(pytest.param(*world, marks=pytest.mark.slow) for world in MORE),
]

Weights = dict[str, np.ndarray]


@functools.cache
def plain(dtype: torch.dtype, model: ModelConfig = training.MODEL) -> tuple[Weights, list[float]]:
    """Weights and losses after ten steps of the plain process."""
    shapes = {name: tuple(w.shape) for name, w in Llama(model, training.VOCABULARY).weights().items()}
    weights = reference.initial(model, shapes, training.SEED, dtype)
    losses = reference.train(model, weights, STREAM, training.OPTIMIZER, RATES)
    return {name: w.detach().double().numpy() for name, w in weights.items()}, losses


def difference(a: Weights, b: Weights) -> float:
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def plans_for(replicas: int, degree: int = 0, idle: tuple[int, ...] = ()) -> list[Plan]:
    return [
        random_plan(STREAM.lengths, replicas, seed=97 * replicas + s, degree=degree, idle=idle) for s in range(STEPS)
    ]


@pytest.mark.parametrize(("replicas", "degree", "idle"), WORLDS)
def test_ten_steps_in_fp64_equal_one_plain_process(replicas: int, degree: int, idle: tuple[int, ...]) -> None:
    expected, losses = plain(torch.float64)
    results = run_ranks(replicas, training.train, torch.float64, STREAM, plans_for(replicas, degree, idle))
    assert max(difference(weights, expected) for weights, _ in results) <= 1e-12
    assert np.allclose(np.sum([part for _, part in results], axis=0), losses, rtol=1e-12, atol=0)


@pytest.mark.parametrize("replicas", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (5, 8))])
def test_ten_steps_in_fp32_stay_within_rounding_of_the_plain_process(replicas: int) -> None:
    expected, _ = plain(torch.float64)
    results = run_ranks(replicas, training.train, torch.float32, STREAM, plans_for(replicas))
    assert max(difference(weights, expected) for weights, _ in results) <= 3e-5


@pytest.mark.parametrize("model", [TIED, BIASED], ids=["tied head without shared keys", "biases and norms of heads"])
def test_another_model_of_the_family_trains_the_same(model: ModelConfig) -> None:
    expected, _ = plain(torch.float64, model)
    results = run_ranks(3, training.train, torch.float64, STREAM, plans_for(3), model)
    assert max(difference(weights, expected) for weights, _ in results) <= 1e-12


def test_the_plans_of_every_planner_train_the_same() -> None:
    layout = uniform_layout([Device(0, i) for i in range(4)], layers=training.MODEL.layers)
    plans = dict[str, Plan]()
    for balance in BALANCES:
        parallel = ParallelConfig(tokens_per_replica=24, max_degree=4, balance=balance)
        placement = plan_step(STREAM.lengths, layout, parallel, training.MODEL)
        plans[balance] = placement.tasks, placement.operations
        assert any(task.kind == "ring" for task in placement.tasks)
    assert max(len({s.sequence for s in task.slices}) for task in plans["static"][0] if task.kind == "ring") == 5
    assert any(task.wave for task in plans["waves"][0])
    results = run_ranks(4, training.train, torch.float64, STREAM, list(islice(cycle(plans.values()), STEPS)))
    assert max(difference(weights, plain(torch.float64)[0]) for weights, _ in results) <= 1e-12


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-14), pytest.param(torch.float32, 1e-6, marks=pytest.mark.slow)]
)
def test_fifty_random_plans_of_one_batch_give_one_gradient(dtype: torch.dtype, bound: float) -> None:
    plans = [random_plan(STREAM.lengths, 4, seed, rings=(seed % 5) / 4) for seed in range(50)]
    shards = run_ranks(4, training.gradients, dtype, STREAM, plans)
    gradients = np.stack([np.concatenate(parts) for parts in zip(*shards, strict=True)])
    assert np.abs(gradients).max() > 0.01
    assert np.abs(gradients - gradients[0]).max() <= bound


def test_a_rank_that_follows_another_plan_stops_the_step_before_anything_changed() -> None:
    with pytest.raises(RankFailed, match=r"ranks \[1\] followed another step plan"):
        run_ranks(2, training.train_with_a_foreign_plan, STREAM, random_plan(STREAM.lengths, 2, 1))
