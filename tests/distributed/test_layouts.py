"""Tensor groups and pipelines, alone and together: every layout computes the gradient of one plain process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace as with_
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from coxswain.boxes import Box, full_box, window
from coxswain.config import ModelConfig
from coxswain.holdings import Holding, ParameterSpec, all_holdings
from coxswain.layout import Layout
from coxswain.models import parameter_specs
from coxswain_train.engine import engine
from tests.distributed import reference, training
from tests.distributed.plans import random_plan
from tests.distributed.ranks import run_ranks
from tests.distributed.reference import Stream
from tests.distributed.threads import run_threads
from tests.layouts import layout_of

STREAM = Stream(lengths=(1, 2, 3, 7, 16, 29, 41), vocabulary=training.VOCABULARY)
MODEL = replace(training.MODEL, layers=3)
TIED = replace(MODEL, tied_head=True, kv_heads=1)
QWEN = replace(MODEL, qkv_bias=True, qk_norm=True, head_size=12)  # biases of the second generation, norms of the third
WHOLE, SHARED = [(1, 3)], [(2, 3)]  # replicas of one device, and of one tensor group

LAYOUTS = {
    "a tensor group of 2": layout_of(SHARED),
    "a tensor group of 4": layout_of([(4, 3)]),
    "two tensor groups": layout_of(SHARED, SHARED),
    "2 stages": layout_of([(1, 1), (1, 3)]),
    "3 stages, twice": layout_of(*[[(1, 1), (1, 2), (1, 3)]] * 2),
    "2 stages of tensor groups": layout_of([(2, 2), (2, 3)], [(2, 2), (2, 3)]),
    "degrees that rise and fall": layout_of([(1, 1), (4, 2), (2, 3)], [(2, 1), (1, 2), (1, 3)]),
    "unequal replicas": layout_of(WHOLE, SHARED, [(2, 2), (1, 3)], WHOLE, [(1, 1), (2, 3)]),
}
Gradient = dict[str, np.ndarray]


@functools.cache
def plain(model: ModelConfig) -> tuple[float, Gradient]:
    shapes = {spec.name: spec.shape for spec in parameter_specs(model, training.VOCABULARY)}
    weights = reference.initial(model, shapes, training.SEED, torch.float64)
    loss = reference.gradient(model, weights, STREAM, 0)
    return loss, {name: weight.grad.numpy() for name, weight in weights.items() if weight.grad is not None}


def summed(
    model: ModelConfig, layout: Layout, seed: int, stream: Stream = STREAM, run: Callable[..., Any] = run_threads
) -> tuple[float, Gradient]:
    """The loss and the gradient of all ranks together."""
    plan = random_plan(STREAM.lengths, len(layout.replicas), seed, layout=layout)
    ranks = run(len(layout.ranks()), training.owned_gradient, model, layout, stream, plan)
    total = {spec.name: np.full(spec.shape, np.nan) for spec in parameter_specs(model, training.VOCABULARY)}
    for _, owned in ranks:
        for box, gradient in owned:
            total[box.name][window(full_box(box.name, total[box.name].shape), box)] = gradient
    return sum(loss for loss, _ in ranks), total


@pytest.mark.parametrize("model", [MODEL, TIED, QWEN], ids=["own head", "tied head, one key head", "biases and norms"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_layout_has_the_loss_and_the_gradient_of_one_plain_process(layout: Layout, model: ModelConfig) -> None:
    loss, expected = plain(model)
    for seed in range(2):
        found, gradient = summed(model, layout, seed)
        assert found == pytest.approx(loss, rel=1e-13)
        assert difference(gradient, expected) <= 1e-14


@pytest.mark.parametrize("name", ["a tensor group of 4", "2 stages of tensor groups", "unequal replicas"])
def test_biases_and_norms_of_heads_have_the_gradient_of_one_plain_process(name: str) -> None:
    """With two key heads, four ranks hold each twice, and have parts of one norm's gradient."""
    _, gradient = summed(QWEN, LAYOUTS[name], 0)
    assert difference(gradient, plain(QWEN)[1]) <= 1e-14


def test_a_norm_of_heads_that_counts_on_one_rank_of_a_group_alone_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParameterSpec, "counts", lambda spec, tensor, degree: spec.split is not None or tensor == 0)
    _, gradient = summed(QWEN, LAYOUTS["a tensor group of 2"], 0)
    assert difference(gradient, plain(QWEN)[1]) > 1e-4


def test_stages_and_tensor_groups_meet_over_processes_as_between_threads() -> None:
    layout = layout_of(*[[(1, 1), (2, 2), (1, 3)]] * 2)
    _, gradient = summed(MODEL, layout, 0, run=run_ranks)
    assert difference(gradient, plain(MODEL)[1]) <= 1e-14


def difference(a: Gradient, b: Gradient) -> float:
    return float(np.max([np.abs(a[name] - b[name]).max() for name in b]))


@pytest.mark.parametrize("ids", [20, 32, 50])
@pytest.mark.parametrize("model", [MODEL, TIED], ids=["own head", "tied head"])
def test_empty_rows_of_the_head_stay_out_of_the_loss_of_a_tensor_group(ids: int, model: ModelConfig) -> None:
    """The second of two ranks has none, the first or more than one of the ids that the weights have."""
    stream = with_(STREAM, vocabulary=ids)
    loss, expected = summed(model, layout_of(WHOLE), 0, stream)
    found, gradient = summed(model, layout_of([(1, 2), (2, 3)]), 0, stream)
    assert found == pytest.approx(loss, rel=1e-13)
    assert difference(gradient, expected) <= 1e-14
    assert not gradient["model.embed_tokens.weight"][ids:].any()


def test_a_tied_gradient_that_is_dropped_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_the_last(specs: Sequence[ParameterSpec], layout: Layout, layers: int) -> list[tuple[Holding, ...]]:
        first, last = all_holdings(specs, layout, layers)
        return [first, tuple(Holding(h.box, h.box.name != "model.embed_tokens.weight") for h in last)]

    monkeypatch.setattr(engine, "all_holdings", without_the_last)
    _, gradient = summed(TIED, LAYOUTS["2 stages"], 0)
    assert difference(gradient, plain(TIED)[1]) > 1e-4


def test_a_norm_whose_gradient_counts_on_every_rank_of_a_group_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParameterSpec, "counts", lambda spec, tensor, degree: True)
    _, gradient = summed(MODEL, LAYOUTS["a tensor group of 2"], 0)
    assert difference(gradient, plain(MODEL)[1]) > 1e-4


def test_a_rank_that_holds_another_ones_key_head_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ParameterSpec.box

    def wrong(spec: ParameterSpec, tensor: int, degree: int) -> Box:
        """Key heads in turn, instead of each one for the ranks whose queries use it."""
        return whole(spec, (tensor * 2) % degree if spec.partial else tensor, degree)

    monkeypatch.setattr(ParameterSpec, "box", wrong)
    _, gradient = summed(MODEL, LAYOUTS["a tensor group of 4"], 0)
    assert difference(gradient, plain(MODEL)[1]) > 1e-4
