"""Tensor groups and pipelines, alone and together: every layout computes the gradient of one plain process."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from coxswain.boxes import full_box, window
from coxswain.config import ModelConfig
from coxswain.layout import Layout
from coxswain.models import parameter_specs
from tests.distributed import reference, training
from tests.distributed.plans import layout_of, random_plan
from tests.distributed.reference import Stream
from tests.distributed.threads import run_threads

STREAM = Stream(lengths=(1, 2, 3, 7, 16, 29, 41), vocabulary=training.VOCABULARY)
MODEL = replace(training.MODEL, layers=3)
TIED = replace(MODEL, tied_head=True, kv_heads=1)
WHOLE, SHARED = [(3, 1)], [(3, 2)]  # replicas of one device, and of one tensor group

LAYOUTS = {
    "a tensor group of 2": layout_of(SHARED),
    "a tensor group of 4": layout_of([(3, 4)]),
    "two tensor groups": layout_of(SHARED, SHARED),
    "2 stages": layout_of([(1, 1), (2, 1)]),
    "3 stages, twice": layout_of(*[[(1, 1)] * 3] * 2),
    "2 stages of tensor groups": layout_of([(2, 2), (1, 2)], [(2, 2), (1, 2)]),
    "degrees that rise and fall": layout_of([(1, 1), (1, 4), (1, 2)], [(1, 2), (1, 1), (1, 1)]),
    "unequal replicas": layout_of(WHOLE, SHARED, [(2, 2), (1, 1)], WHOLE, [(1, 1), (2, 2)]),
}
Gradient = dict[str, np.ndarray]


@functools.cache
def plain(model: ModelConfig) -> tuple[float, Gradient]:
    shapes = {spec.name: spec.shape for spec in parameter_specs(model, training.VOCABULARY)}
    weights = reference.initial(model, shapes, training.SEED, torch.float64)
    loss = reference.gradient(model, weights, STREAM, 0)
    return loss, {name: weight.grad.numpy() for name, weight in weights.items() if weight.grad is not None}


def summed(model: ModelConfig, layout: Layout, seed: int) -> tuple[float, Gradient]:
    """The loss and the gradient of all ranks together, as the holdings say."""
    plan = random_plan(STREAM.lengths, len(layout.replicas), seed, layout=layout)
    ranks = run_threads(len(layout.ranks()), training.held_gradient, model, layout, STREAM, plan)
    total = {spec.name: np.zeros(spec.shape) for spec in parameter_specs(model, training.VOCABULARY)}
    for _, held in ranks:
        for holding, gradient in held:
            if holding.counts:
                name = holding.box.name
                total[name][window(full_box(name, total[name].shape), holding.box)] += gradient
    return sum(loss for loss, _ in ranks), total


@pytest.mark.parametrize("model", [MODEL, TIED], ids=["own head", "tied head, one key head"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_layout_has_the_loss_and_the_gradient_of_one_plain_process(layout: Layout, model: ModelConfig) -> None:
    loss, expected = plain(model)
    for seed in range(3):
        found, gradient = summed(model, layout, seed)
        assert found == pytest.approx(loss, rel=1e-13)
        assert max(float(np.abs(gradient[name] - expected[name]).max()) for name in expected) <= 1e-14
