"""The engine's parts on one rank: loss, schedule, agreement, narrow weights, weights from and to files."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from msgspec.structs import replace
from torch.nn import functional

from coxswain.boxes import full_box
from coxswain.config import OptimizerConfig
from coxswain.errors import Refused, Retryable
from coxswain.layout import Device, uniform_layout
from coxswain_link.store import open_store
from coxswain_train.checkpoint.export import export
from coxswain_train.checkpoint.pretrained import load_pretrained
from coxswain_train.engine.engine import check_layout
from coxswain_train.engine.schedule import learning_rate
from coxswain_train.model import loss
from coxswain_train.parallel.zero1 import RankStats, check_stats
from tests.distributed import training
from tests.distributed.plans import random_plan
from tests.distributed.ranks import run_ranks
from tests.distributed.reference import Stream

STREAM = Stream(lengths=(9, 30), vocabulary=training.VOCABULARY)
SHAPE = (40, 8)


def test_the_loss_in_chunks_equals_torchs_with_its_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "_CHUNK", 7)
    hidden, weight = torch.randn(30, 8, dtype=torch.float64), torch.randn(19, 8, dtype=torch.float64)
    labels = torch.randint(0, 19, (30,)).where(torch.arange(30) % 4 > 0, loss.IGNORED)
    pairs = [[x.clone().requires_grad_() for x in (hidden, weight)] for _ in range(2)]
    ours = loss.linear_cross_entropy(*pairs[0], labels)
    theirs = functional.cross_entropy(pairs[1][0] @ pairs[1][1].T, labels, reduction="sum")
    for total in (ours, theirs):
        (total * 0.5).backward()
    assert torch.allclose(ours, theirs, rtol=1e-13)
    assert all(torch.allclose(a.grad, b.grad, rtol=1e-12) for a, b in zip(*pairs, strict=True))


def test_the_loss_of_no_tokens_or_no_labels_is_zero() -> None:
    weight = torch.randn(19, 8, requires_grad=True)
    none = loss.linear_cross_entropy(torch.zeros(0, 8), weight, torch.zeros(0, dtype=torch.int64))
    unlabelled = loss.linear_cross_entropy(torch.ones(3, 8), weight, torch.full((3,), loss.IGNORED))
    total = none + unlabelled
    total.backward()
    assert total.item() == 0
    assert float(weight.grad.abs().max()) == 0


def test_the_rate_warms_up_then_falls_to_its_minimum_and_stays() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=4, minimum_ratio=0.1)
    rates = [learning_rate(config, step, 24) for step in range(40)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert all(a > b for a, b in itertools.pairwise(rates[4:25]))
    assert rates[14] == pytest.approx(0.55)
    assert rates[24:] == pytest.approx([0.1] * 16)


def test_a_constant_schedule_warms_up_and_stays_at_its_peak() -> None:
    config = OptimizerConfig(learning_rate=2.0, warmup_steps=2, schedule="Constant")
    assert [learning_rate(config, step, 5) for step in range(5)] == [1.0, 2.0, 2.0, 2.0, 2.0]


def test_ranks_agree_on_the_norm_and_on_the_sum_of_the_losses() -> None:
    agreed = check_stats([[9.0, 1.5, 4.0, 7.0], [16.0, 2.5, 6.0, 7.0]], RankStats(1.5, 4, 10, 7))
    assert (agreed.norm, agreed.loss_sum) == (5.0, 4.0)


def test_labels_that_got_lost_on_the_way_stop_the_step() -> None:
    with pytest.raises(Retryable, match="trained on 9 labels, the plan has 10"):
        check_stats([[0.0, 0.0, 4.0, 7.0], [0.0, 0.0, 5.0, 7.0]], RankStats(0.0, 4, 10, 7))


def test_a_gradient_that_is_not_finite_is_refused_with_the_field_to_change() -> None:
    (message,) = run_ranks(1, training.step_with_a_broken_gradient, STREAM)
    assert "gradient norm nan" in message
    assert "optimizer.learningRate" in message


def test_narrow_weights_train_on_fp32_masters() -> None:
    plans = [random_plan(STREAM.lengths, 2, seed) for seed in range(4)]
    narrow, wide = (run_ranks(2, training.masters, dtype, STREAM, plans) for dtype in (torch.bfloat16, torch.float32))
    for a, b in zip(narrow, wide, strict=True):
        assert a.dtype == np.float32
        assert 0 < np.abs(a - b).max() < 0.02  # the rates sum up to 0.01
    assert not np.array_equal(narrow[0], torch.from_numpy(narrow[0]).bfloat16().float().numpy())


def test_a_layout_with_stages_is_refused_with_the_fields_to_change() -> None:
    layout = uniform_layout([Device(0, i) for i in range(4)], layers=2, pipeline=2)
    with pytest.raises(Refused, match=r"parallelism.pipeline must be 1"):
        check_layout(layout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_come_from_a_safetensors_file_by_rows(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.randn(SHAPE).to(dtype)
    safetensors.torch.save_file({"w": values}, tmp_path / "model.safetensors")
    room = torch.zeros(5, 8)
    box = replace(full_box("w", SHAPE), offset=(10, 0), shape=(5, 8))
    load_pretrained(f"file://{tmp_path}/model.safetensors", {box: room}, {"w": SHAPE})
    assert torch.equal(room, values[10:15].float())


def test_rows_beyond_the_files_vocabulary_keep_their_initial_values(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.ones(30, 8)}, tmp_path / "model.safetensors")
    room = torch.zeros(SHAPE)
    load_pretrained(f"file://{tmp_path}", {full_box("w", SHAPE): room}, {"w": SHAPE})
    assert (float(room[:30].min()), float(room[30:].max())) == (1.0, 0.0)


@pytest.mark.parametrize("name", ["w", "another"])
def test_weights_of_another_model_are_refused_by_name(tmp_path: Path, name: str) -> None:
    safetensors.torch.save_file({name: torch.ones(40, 9)}, tmp_path / "model.safetensors")
    with pytest.raises(Refused, match=r"w (is missing|has shape \[40, 9\]), this model needs \[40, 8\]") as refused:
        load_pretrained(f"file://{tmp_path}", {full_box("w", SHAPE): torch.zeros(SHAPE)}, {"w": SHAPE})
    assert refused.value.reason == "ForeignWeights"


def test_exported_weights_start_another_job_where_this_one_stood(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    (weights,) = run_ranks(1, training.save_with_manifest, STREAM, uri)
    assert export(open_store(uri), tmp_path / "model.safetensors") == 1
    model = replace(training.MODEL, init_from=f"file://{tmp_path}/model.safetensors")
    for started in run_ranks(3, training.initial_weights, model):
        assert all(np.array_equal(started[name], weights[name]) for name in weights)
