"""Any number of replicas and any legal plan train like one plain process."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from coxswain_train.model import Llama
from coxswain_train.schedule import learning_rate
from tests.distributed import reference, training
from tests.distributed.plans import Plan, random_plan
from tests.distributed.ranks import run_ranks
from tests.distributed.reference import Stream

STEPS = 20
STREAM = Stream(lengths=(1, 2, 3, 7, 16, 29, 41), vocabulary=training.VOCABULARY)
RATES = [learning_rate(training.OPTIMIZER, step, STEPS) for step in range(STEPS)]


@functools.cache
def plain(dtype: torch.dtype, tied: bool = False) -> tuple[dict[str, np.ndarray], list[float]]:
    model = training.MODEL if not tied else _tied()
    shapes = {name: tuple(w.shape) for name, w in Llama(model, training.VOCABULARY).weights().items()}
    weights = reference.initial(model, shapes, training.SEED, dtype)
    losses = reference.train(model, weights, STREAM, training.OPTIMIZER, RATES)
    return {name: w.detach().double().numpy() for name, w in weights.items()}, losses


def _tied():  # type: ignore[no-untyped-def]
    from msgspec.structs import replace

    return replace(training.MODEL, tied_head=True, kv_heads=4)


def difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def plans_for(replicas: int, degree: int = 0, idle: tuple[int, ...] = ()) -> list[Plan]:
    return [
        random_plan(STREAM.lengths, replicas, seed=97 * replicas + s, degree=degree, idle=idle) for s in range(STEPS)
    ]


# (replicas, degree of the rings (0: any), idle replicas)
WORLDS = [(1, 0, ()), (2, 2, ()), (3, 0, ()), (3, 3, (1,)), (4, 3, (0,)), (5, 5, ()), (8, 7, (3,)), (8, 8, ())]


@pytest.mark.parametrize(("replicas", "degree", "idle"), WORLDS)
def test_twenty_steps_in_fp64_equal_one_plain_process(replicas: int, degree: int, idle: tuple[int, ...]) -> None:
    expected, losses = plain(torch.float64)
    results = run_ranks(replicas, training.train, torch.float64, STREAM, plans_for(replicas, degree, idle))
    d = [difference(weights, expected) for weights, _ in results]
    print(replicas, degree, d)
    assert max(d) <= 1e-12
    assert np.allclose(np.sum([part for _, part in results], axis=0), losses, rtol=1e-12)
