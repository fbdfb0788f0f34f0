"""Muon on any number of replicas against torch's own in one plain process."""

from __future__ import annotations

import functools
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace

from coxswain.config import OptimizerConfig, ParameterGroupConfig
from coxswain.errors import Refused
from coxswain.models import parameter_specs
from coxswain.parameter_groups import muon_matrices, settings_of
from coxswain.wire import Shard
from coxswain_link.store import open_store
from coxswain_train.checkpoint import save_load, snapshots
from coxswain_train.engine.schedule import learning_rate
from coxswain_train.model.llama import Llama
from coxswain_train.parallel.process_groups import ProcessGroups
from tests.distributed import reference, training
from tests.distributed.plans import random_plan
from tests.distributed.reference import Stream
from tests.distributed.threads import run_threads
from tests.layouts import layout_of

STEPS = 6
STREAM = Stream(lengths=(1, 3, 7, 16, 29, 41), vocabulary=training.VOCABULARY)
GROUPS = (
    ParameterGroupConfig(match="*.k_proj.*", learning_rate_scale=0.5),
    ParameterGroupConfig(match="*.mlp.*", weight_decay=0.3),
)
MUON = replace(training.OPTIMIZER, kind="Muon", momentum=0.9, groups=GROUPS)
SPECS = parameter_specs(training.MODEL, training.VOCABULARY)
MATRICES = muon_matrices(SPECS, MUON)

Weights = dict[str, np.ndarray]


def test_muon_has_the_matrices_within_layers_and_adamw_all_else() -> None:
    others = {spec.name for spec in SPECS} - MATRICES
    assert len(MATRICES) == 7 * training.MODEL.layers
    assert {n for n in others if "norm" not in n} == {"model.embed_tokens.weight", "lm_head.weight"}
    assert muon_matrices(SPECS, training.OPTIMIZER) == frozenset()


@functools.cache
def plain(dtype: torch.dtype) -> Weights:
    """Weights after all steps by torch.optim.Muon and torch.optim.AdamW."""
    shapes = {name: tuple(w.shape) for name, w in Llama(training.MODEL, training.VOCABULARY).weights().items()}
    weights = reference.initial(training.MODEL, shapes, training.SEED, dtype)
    groups = [(n, w, settings_of(n, w.dim(), MUON)) for n, w in weights.items()]
    parts = [{"params": [w], "weight_decay": s.decay, "scale": s.scale, "name": n} for n, w, s in groups]
    betas = (MUON.beta1, MUON.beta2)
    optimizers = [
        torch.optim.Muon(
            [p for p in parts if p["name"] in MATRICES], momentum=MUON.momentum, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(
            [p for p in parts if p["name"] not in MATRICES], betas=betas, eps=MUON.epsilon, foreach=False
        ),
    ]
    for step in range(STEPS):
        reference.gradient(training.MODEL, weights, STREAM, step)
        torch.nn.utils.clip_grad_norm_(list(weights.values()), MUON.gradient_clip)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(MUON, step, STEPS) * group["scale"]
            optimizer.step()
            optimizer.zero_grad()
    return {name: w.detach().double().numpy() for name, w in weights.items()}


def difference(a: Weights, b: Weights) -> float:
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def train(
    world: ProcessGroups, dtype: torch.dtype, first: int, stop: int, uri: str, optimizer: OptimizerConfig = MUON
) -> tuple[Weights, tuple[Shard, ...]]:
    """Steps [first, stop), from the shards at `uri` unless that is the beginning; the weights, and this rank's shards."""
    engine = training.engine_of(world, dtype, optimizer=optimizer, steps=STEPS)
    engine.initialise(training.SEED)
    store = open_store(uri, create=True)
    if first:
        save_load.load(store, save_load.read_manifest(store, f"{first}").shards, engine.make_room())
        engine.begin(0)
    for step in range(first, stop):
        plan = random_plan(STREAM.lengths, world.ranks, 97 * world.ranks + step)
        engine.step(training.work_of(STREAM, step, plan, world.rank), time.perf_counter())
    return training.weights_of(engine), tuple(save_load.write_shards(store, snapshots.snapshot(engine.boxes())))


@pytest.mark.parametrize(
    ("replicas", "dtype", "bound"), [(1, torch.float64, 1e-12), (3, torch.float64, 1e-12), (2, torch.float32, 2e-3)]
)
def test_six_steps_equal_those_of_torchs_muon(replicas: int, dtype: torch.dtype, bound: float, tmp_path: Path) -> None:
    """Muon's own bf16 turns a last bit of fp32 into one of bf16."""
    for weights, _ in run_threads(replicas, train, dtype, 0, STEPS, f"file://{tmp_path}"):
        assert difference(weights, plain(dtype)) <= bound


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_checkpoint_of_two_replicas_goes_on_as_if_nothing_had_happened(replicas: int, tmp_path: Path) -> None:
    uri, half = f"file://{tmp_path}", STEPS // 2
    saved = run_threads(2, train, torch.float64, 0, half, uri)
    manifest = training.manifest(half, tuple(shard for _, shards in saved for shard in shards))
    open_store(uri).put(f"{half}", msgspec.json.encode(manifest))
    for weights, _ in run_threads(replicas, train, torch.float64, half, STEPS, uri):
        assert difference(weights, plain(torch.float64)) <= 1e-12


def test_adamw_alone_gives_other_weights(tmp_path: Path) -> None:
    adamw = replace(MUON, kind="AdamW")
    ((weights, _),) = run_threads(1, train, torch.float64, 0, STEPS, f"file://{tmp_path}", adamw)
    assert difference(weights, plain(torch.float64)) > 1e-3


def test_a_matrix_that_a_tensor_group_splits_is_refused_by_name() -> None:
    layout = layout_of([(2, training.MODEL.layers)])
    with pytest.raises(
        Refused, match=r"optimizer\.kind Muon: model\.layers\.0\.mlp\.down_proj\.weight is split"
    ) as caught:
        run_threads(2, training.engine_of, torch.float32, training.MODEL, MUON, STEPS, layout)
    assert caught.value.reason == "MuonUnsupported"


def test_every_matrix_has_one_owner_and_no_rank_is_without() -> None:
    found = run_threads(
        3, lambda world: training.engine_of(world, torch.float32, optimizer=MUON).make_room()["parameter"]
    )
    owned = [{box.name for box in boxes} & MATRICES for boxes in found]
    assert sorted(name for names in owned for name in names) == sorted(MATRICES)
    assert all(owned)
