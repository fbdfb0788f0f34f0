"""State named by boxes: the same initial values, and the same checkpoint, in any layout."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from coxswain.boxes import Box, full_box, window, zero_shard
from coxswain.errors import Refused
from coxswain.wire import Shard
from coxswain_link.store import open_store
from coxswain_train.checkpoint import save_load
from coxswain_train.model.init_weights import init_box
from coxswain_train.parallel.process_groups import ProcessGroups
from coxswain_train.parallel.shards import shard
from coxswain_train.parallel.zero1 import KINDS
from tests.distributed import training
from tests.distributed.plans import random_plan
from tests.distributed.ranks import run_ranks
from tests.distributed.reference import Stream

STREAM = Stream(lengths=(5, 12, 23), vocabulary=training.VOCABULARY)
SHAPE = (37, 24)
NAME = "model.layers.1.self_attn.o_proj.weight"
Flat = dict[tuple[str, Box], np.ndarray]


def save_after_two_steps(world: ProcessGroups, uri: str) -> tuple[tuple[Shard, ...], Flat]:
    engine = training.engine_of(world, torch.float32)
    engine.initialise(training.SEED)
    for step in range(2):
        plan = random_plan(STREAM.lengths, world.ranks, step)
        engine.step(training.work_of(STREAM, step, plan, world.rank), time.perf_counter())
    saver, saved = save_load.Saver(open_store(uri, create=True)), []
    saver.begin(engine.boxes(), lambda shards, seconds: saved.append(shards))
    saver.wait()
    return saved[0], _flat(engine.boxes())


def load_and_save(
    world: ProcessGroups, uri: str, shards: list[Shard]
) -> tuple[tuple[Shard, ...], Flat, dict[str, np.ndarray]]:
    engine, store = training.engine_of(world, torch.float32), open_store(uri)
    save_load.load(store, shards, engine.boxes())
    engine.optimizer.all_gather()
    again = tuple(save_load.write_shards(store, save_load.snapshot(engine.boxes())))
    return again, _flat(engine.boxes()), training.weights_of(engine)


def _flat(state: save_load.State) -> Flat:
    return {(kind, box): x.numpy().copy() for kind, boxes in state.items() for box, x in boxes.items()}


def whole_state(parts: list[Flat]) -> dict[tuple[str, str], np.ndarray]:
    """The logical tensors put together from all ranks' boxes."""
    rows: dict[tuple[str, str], list[tuple[int, np.ndarray]]] = {}
    for part in parts:
        for (kind, box), values in part.items():
            rows.setdefault((kind, box.name), []).append((box.offset[0], values))
    return {key: np.concatenate([v for _, v in sorted(r, key=lambda x: x[0])]) for key, r in rows.items()}


def same(a: dict[tuple[str, str], np.ndarray], b: dict[tuple[str, str], np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


def test_a_checkpoint_travels_from_one_replica_to_three_to_four_and_back_bit_by_bit(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    saved = run_ranks(1, save_after_two_steps, uri)
    before = whole_state([state for _, state in saved])
    shards = [s for part, _ in saved for s in part]
    assert any(np.abs(values).max() > 0 for (kind, _), values in before.items() if kind == "exp_avg_sq")
    for replicas in (3, 4, 1):
        loaded = run_ranks(replicas, load_and_save, uri, shards)
        assert same(whole_state([state for _, state, _ in loaded]), before)
        parameters = {name: values for (kind, name), values in before.items() if kind == "parameter"}
        assert all(np.array_equal(weights[n], p) for _, _, weights in loaded for n, p in parameters.items())
        shards = [s for part, _, _ in loaded for s in part]


@pytest.fixture
def one_shard(tmp_path: Path) -> tuple[str, Shard]:
    values = torch.arange(12.0).view(3, 4)
    store = open_store(f"file://{tmp_path}", create=True)
    (found,) = save_load.write_shards(store, [("parameter", full_box("w", (3, 4)), values)])
    return f"file://{tmp_path}", found


def load_w(uri: str, shards: list[Shard]) -> torch.Tensor:
    room = torch.zeros(2, 4)
    save_load.load(open_store(uri), shards, {"parameter": {Box("w", (1, 0), (2, 4)): room}})
    return room


def test_a_box_is_cut_out_of_a_shard(one_shard: tuple[str, Shard]) -> None:
    assert load_w(one_shard[0], [one_shard[1]]).tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_missing_shard_is_refused_by_name(one_shard: tuple[str, Shard]) -> None:
    open_store(one_shard[0]).delete(one_shard[1].key)
    with pytest.raises(Refused, match=f"{one_shard[1].key} is missing") as refused:
        load_w(one_shard[0], [one_shard[1]])
    assert refused.value.reason == "TornCheckpoint"


def test_a_shard_with_one_changed_byte_is_refused_by_name(one_shard: tuple[str, Shard]) -> None:
    store = open_store(one_shard[0])
    data = bytearray(store.get(one_shard[1].key))
    data[-1] ^= 1
    store.put(one_shard[1].key, bytes(data))
    with pytest.raises(Refused, match=f"{one_shard[1].key} is damaged: its content is not what its name says"):
        load_w(one_shard[0], [one_shard[1]])


def test_a_checkpoint_without_all_of_a_needed_box_is_refused(one_shard: tuple[str, Shard]) -> None:
    with pytest.raises(Refused, match="no shard holds all of parameter") as refused:
        load_w(one_shard[0], [])
    assert refused.value.reason == "TornCheckpoint"


def test_a_damaged_shard_is_replaced_when_the_same_content_is_saved_again(one_shard: tuple[str, Shard]) -> None:
    store = open_store(one_shard[0])
    store.put(one_shard[1].key, b"torn")
    list(save_load.write_shards(store, [("parameter", full_box("w", (3, 4)), torch.arange(12.0).view(3, 4))]))
    assert load_w(one_shard[0], [one_shard[1]]).sum() == sum(range(4, 12))


def test_what_the_background_runs_into_is_raised_at_the_next_check(tmp_path: Path) -> None:
    saver = save_load.Saver(open_store(f"file://{tmp_path}", create=True))

    def refuse(shards: tuple[Shard, ...], seconds: float) -> None:
        raise Refused("Example", "the report was refused")

    saver.begin({"parameter": {full_box("w", (1,)): torch.zeros(1)}}, refuse)
    with pytest.raises(Refused, match="the report was refused"):
        saver.wait()
    saver.wait()  # it is raised once


@pytest.mark.parametrize("owners", [2, 5, 40])
def test_initial_values_do_not_depend_on_the_boxes(owners: int) -> None:
    full = init_box(5, full_box(NAME, SHAPE), SHAPE, training.MODEL)
    for owner in range(owners):
        if box := zero_shard(full_box(NAME, SHAPE), owners, owner):
            part = init_box(5, box, SHAPE, training.MODEL)
            assert np.array_equal(part, full[window(full_box(NAME, SHAPE), box)])


def test_a_box_of_columns_has_the_same_initial_values_too() -> None:
    box, all_ = Box(NAME, (3, 7), (9, 11)), full_box(NAME, SHAPE)
    full = init_box(5, all_, SHAPE, training.MODEL)
    assert np.array_equal(init_box(5, box, SHAPE, training.MODEL), full[window(all_, box)])


def test_initial_values_are_normal_and_differ_by_seed_and_name() -> None:
    shape = (400, 300)
    one, two, other = (
        init_box(s, full_box(n, shape), shape, training.MODEL) for s, n in ((1, "a"), (2, "a"), (1, "b"))
    )
    assert abs(float(one.std()) / 0.02 - 1) < 0.01
    assert abs(float(one.mean())) < 3e-4
    assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("owners", [1, 3, 50])
def test_owners_share_every_element_once_and_matrices_come_first(owners: int) -> None:
    shapes = {"norm": (8,), "a": (8, 3), "b": (50, 2)}
    shards = shard(shapes, owners)
    assert sum(shards.sizes()) == 8 + 24 + 100
    assert sum(shards.decayed(owner) for owner in range(owners)) == 124
    assert all(box.name == "norm" for boxes in shards.boxes for box in boxes[sum(len(b.shape) > 1 for b in boxes) :])


def test_kinds_of_state_are_those_of_the_manifest() -> None:
    assert KINDS == ("parameter", "exp_avg", "exp_avg_sq")
