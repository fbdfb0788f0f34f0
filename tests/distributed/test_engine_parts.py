"""Parts of the engine: bf16 weights on two ranks, layouts, weights from and to files."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from msgspec.structs import replace

from coxswain.boxes import Box, full_box
from coxswain.errors import Refused
from coxswain.layout import Device, uniform_layout
from coxswain.models import parameter_specs
from coxswain_link.store import open_store
from coxswain_train.checkpoint.export import export
from coxswain_train.checkpoint.pretrained import load_pretrained
from coxswain_train.engine.engine import check_layout
from coxswain_train.model.llama import Llama
from tests.distributed import training
from tests.distributed.plans import random_plan
from tests.distributed.reference import Stream
from tests.distributed.threads import run_threads

STREAM = Stream(lengths=(9, 30), vocabulary=training.VOCABULARY)
SHAPE = (40, 8)


def test_bf16_gradients_of_any_plan_are_those_of_fp32_up_to_rounding() -> None:
    plans = [random_plan(STREAM.lengths, 2, seed) for seed in range(4)]
    narrow, wide = (
        run_threads(2, training.gradients, dtype, STREAM, plans) for dtype in (torch.bfloat16, torch.float32)
    )
    for a, b in zip(itertools.chain(*narrow), itertools.chain(*wide), strict=True):
        assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.99
        assert np.linalg.norm(a) == pytest.approx(np.linalg.norm(b), rel=0.02)


def test_bf16_weights_train_on_fp32_masters() -> None:
    plans = [random_plan(STREAM.lengths, 2, seed) for seed in range(4)]
    for found in run_threads(2, training.masters, torch.bfloat16, STREAM, plans):
        assert found.dtype == np.float32
        assert not np.array_equal(found, torch.from_numpy(found).bfloat16().float().numpy())


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_box_of_columns_is_cut_out_of_its_rows(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.arange(320).view(SHAPE).to(dtype)
    safetensors.torch.save_file({"before": torch.zeros(3, 3), "w": values}, tmp_path / "model.safetensors")
    room, other = torch.zeros(5, 3), torch.zeros(3, 3)
    state = {Box("w", (35, 4), (5, 3)): room, full_box("before", (3, 3)): other}
    load_pretrained(f"file://{tmp_path}", state, {"w": SHAPE, "before": (3, 3)})
    assert torch.equal(room, values[35:, 4:7].float())


def test_an_owner_of_only_the_rows_beyond_the_files_vocabulary_keeps_them(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.ones(30, 8)}, tmp_path / "model.safetensors")
    room = torch.full((10, 8), 5.0)
    load_pretrained(f"file://{tmp_path}", {Box("w", (30, 0), (10, 8)): room}, {"w": SHAPE})
    assert room.eq(5.0).all()


@pytest.mark.parametrize(("rows", "fits"), [(100, True), (37, True), (36, False), (101, False)])
def test_a_vocabulary_may_lack_up_to_63_rows_and_have_none_too_many(tmp_path: Path, rows: int, fits: bool) -> None:
    safetensors.torch.save_file({"w": torch.ones(rows, 2)}, tmp_path / "model.safetensors")
    with nullcontext() if fits else pytest.raises(Refused, match=rf"w has shape \[{rows}, 2\], this model needs"):
        load_pretrained(f"file://{tmp_path}", {full_box("w", (100, 2)): torch.zeros(100, 2)}, {"w": (100, 2)})


def test_a_folders_subfolders_are_not_read_for_weights(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    safetensors.torch.save_file({"w": torch.ones(SHAPE)}, tmp_path / "model.safetensors")
    safetensors.torch.save_file({"w": torch.zeros(SHAPE)}, tmp_path / "old" / "model.safetensors")
    room = torch.zeros(SHAPE)
    load_pretrained(f"file://{tmp_path}", {full_box("w", SHAPE): room}, {"w": SHAPE})
    assert room.eq(1.0).all()


@pytest.mark.parametrize("name", ["w", "another"])
def test_weights_of_another_model_are_refused_by_name(tmp_path: Path, name: str) -> None:
    safetensors.torch.save_file({name: torch.ones(40, 9)}, tmp_path / "model.safetensors")
    with pytest.raises(Refused, match=r"w (is missing|has shape \[40, 9\]), this model needs \[40, 8\]") as refused:
        load_pretrained(f"file://{tmp_path}", {full_box("w", SHAPE): torch.zeros(SHAPE)}, {"w": SHAPE})
    assert refused.value.reason == "ForeignWeights"


def test_exported_weights_start_another_job_where_this_one_stood(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    (weights,) = run_threads(1, training.save_with_manifest, STREAM, uri)
    assert export(open_store(uri), tmp_path / "model.safetensors") == 1
    model = replace(training.MODEL, init_from=f"file://{tmp_path}/model.safetensors")
    for started in run_threads(3, training.initial_weights, model):
        assert all(np.array_equal(started[name], weights[name]) for name in weights)


@pytest.mark.parametrize(
    "changes", [{}, {"tied_head": True}, {"qkv_bias": True}, {"qk_norm": True, "head_size": 16}], ids=str
)
def test_the_list_of_parameters_is_that_of_the_model(changes: dict[str, Any]) -> None:
    config = replace(training.MODEL, **changes)
    shapes = {name: tuple(weight.shape) for name, weight in Llama(config, training.VOCABULARY).weights().items()}
    assert {spec.name: spec.shape for spec in parameter_specs(config, training.VOCABULARY)} == shapes
