"""Parts of the engine: bf16 weights on two ranks, layouts, weights from and to files."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
import tracemalloc
from collections.abc import Mapping
from contextlib import nullcontext
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from msgspec.structs import replace
from torch import Tensor

from coxswain.boxes import Box, full_box, zero_shard
from coxswain.config import CustomModel, EndpointConfig
from coxswain.errors import Refused
from coxswain.layout import Device, uniform_layout
from coxswain.models import parameter_specs
from coxswain.presets import PRESETS
from coxswain_link.cgroup import CoreShare
from coxswain_link.store import BucketNotFound, NotFound, Store, open_store
from coxswain_train.checkpoint import foreign_files
from coxswain_train.checkpoint.export import export
from coxswain_train.checkpoint.pretrained import EMBEDDING, HEAD, load_pretrained
from coxswain_train.engine.engine import Engine
from coxswain_train.model.llama import Llama
from tests.distributed import training
from tests.distributed.plans import random_plan
from tests.distributed.reference import Stream
from tests.distributed.threads import ThreadWorld, run_threads

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


def test_a_step_without_a_label_trains_with_a_gradient_of_zero() -> None:
    def train(world: ThreadWorld) -> Any:
        engine = training.engine_of(world, torch.float32)  # type: ignore[arg-type]
        engine.initialise(training.SEED)
        work = training.work_of(STREAM, 0, random_plan(STREAM.lengths, 1, 0), 0)
        work.batch.labels.fill_(-100)
        return engine.step(dataclasses.replace(work, valid=0, labels=0), time.perf_counter())

    (result,) = run_threads(1, train)
    assert (result.loss_sum, result.gradient_norm) == (0.0, 0.0)


def test_bf16_weights_train_on_fp32_masters() -> None:
    plans = [random_plan(STREAM.lengths, 2, seed) for seed in range(4)]
    for found in run_threads(2, training.masters, torch.bfloat16, STREAM, plans):
        assert found.dtype == np.float32
        assert not np.array_equal(found, torch.from_numpy(found).bfloat16().float().numpy())


def test_a_tensor_degree_that_cannot_share_the_model_is_refused_with_the_field_to_change() -> None:
    layout = uniform_layout([Device(0, i) for i in range(3)], layers=2, tensor=3)
    with pytest.raises(
        Refused, match=r"parallelism.tensor: .*embed_tokens.weight: 64 rows cannot be shared evenly .* of 3"
    ):
        run_threads(1, training.engine_of, torch.float32, training.MODEL, training.OPTIMIZER, 1, layout)


def stepped(world: ThreadWorld) -> tuple[Tensor, Tensor, Tensor, float]:
    """Masters before a step, as it settles the snapshot under way, and after it; what the next probe takes for its share."""
    engine = training.engine_of(world, torch.float64)  # type: ignore[arg-type]
    engine.initialise(training.SEED)
    masters, settled, ran, held = (
        engine.optimizer.state.values("parameter")[0],
        list[Tensor](),
        iter([0.0, 1.0]),
        iter([0.0, 3.0]),
    )
    before = masters.clone()
    engine.before_update = lambda: settled.append(masters.clone())
    engine.share = CoreShare(lambda: next(held), lambda: next(ran))
    engine.short_probe = SimpleNamespace(seconds=lambda share: share)  # type: ignore[assignment]
    engine.step(training.work_of(STREAM, 0, random_plan(STREAM.lengths, 1, 0), 0), time.perf_counter())
    return before, *settled, masters, engine.probe()


def test_a_step_settles_the_snapshot_before_it_changes_the_state_and_then_takes_its_share_of_the_core() -> None:
    ((before, settled, after, share),) = run_threads(1, stepped)
    assert torch.equal(settled, before)
    assert not torch.equal(after, before)
    assert share == 0.25


def test_state_that_is_about_to_be_filled_is_offered_to_no_other_world() -> None:
    def offered(world: ThreadWorld) -> list[int]:
        engine = training.engine_of(world, torch.float64)  # type: ignore[arg-type]
        counts = []
        for fill in (lambda: engine.initialise(training.SEED), engine.make_room, lambda: engine.begin(7)):
            fill()
            counts.append(len(engine.live.all_held(0)))
        return counts

    assert run_threads(1, offered) == [[1, 0, 1]]


def cut_short(world: ThreadWorld) -> list[bool]:
    """Whether the model's weights count as whole before a step, and behind one whose gather an abort ends as if it were done."""
    engine = training.engine_of(world, torch.float64)  # type: ignore[arg-type]
    engine.initialise(training.SEED)
    whole = [engine.live.weights is not None]
    engine.before_update = lambda: setattr(world, "aborted", True)
    with pytest.raises(RuntimeError, match="aborted"):
        engine.step(training.work_of(STREAM, 0, random_plan(STREAM.lengths, 1, 0), 0), time.perf_counter())
    return [*whole, engine.live.weights is not None]


def test_weights_whose_gather_an_abort_cut_short_are_not_kept_for_the_next_world() -> None:
    assert run_threads(1, cut_short) == [[True, False]]


@pytest.mark.parametrize(("size", "fits"), [(8, True), (256, True), (4, False), (12, False), (264, False)])
def test_heads_without_a_kernel_on_cuda_are_refused_with_the_field_to_change(size: int, fits: bool) -> None:
    """An engine that goes on asks its world, which there is none, for a tensor group."""
    model, layout, world = replace(training.MODEL, head_size=size), uniform_layout([Device(0, 0)], layers=2), None
    cuda, says = (
        torch.device("cuda"),
        f"model.config.headSize: heads of {size} elements; on CUDA a multiple of 8, at most 256",
    )
    with pytest.raises(AttributeError if fits else Refused, match="tensor_group" if fits else says):
        Engine(model, 64, training.OPTIMIZER, 1, layout, layout.ranks()[0], world, cuda, torch.bfloat16)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_come_from_a_safetensors_file_by_rows(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.randn(SHAPE).to(dtype)
    safetensors.torch.save_file({"w": values}, tmp_path / "model.safetensors")
    room = torch.zeros(5, 8)
    box = replace(full_box("w", SHAPE), offset=(10, 0), shape=(5, 8))
    load_pretrained(f"file://{tmp_path}/model.safetensors", {box: room}, {"w": SHAPE})
    assert torch.equal(room, values[10:15].float())


@pytest.mark.parametrize("rows", [slice(0, 40), slice(20, 35), slice(30, 40), slice(33, 37)], ids=str)
def test_the_rows_that_round_a_vocabulary_up_are_zero_in_any_box(tmp_path: Path, rows: slice) -> None:
    safetensors.torch.save_file({HEAD: torch.ones(30, 8)}, tmp_path / "model.safetensors")
    whole, count = torch.zeros(SHAPE), rows.stop - rows.start
    whole[:30] = 1.0
    room = torch.full((count, 8), 5.0)
    load_pretrained(f"file://{tmp_path}", {Box(HEAD, (rows.start, 0), (count, 8)): room}, {HEAD: SHAPE}, ids=29)
    assert torch.equal(room, whole[rows])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_box_of_columns_is_cut_out_of_its_rows(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.arange(320).view(SHAPE).to(dtype)
    safetensors.torch.save_file({"before": torch.zeros(3, 3), "w": values}, tmp_path / "model.safetensors")
    room, other = torch.zeros(5, 3), torch.zeros(3, 3)
    state = {Box("w", (35, 4), (5, 3)): room, full_box("before", (3, 3)): other}
    load_pretrained(f"file://{tmp_path}", state, {"w": SHAPE, "before": (3, 3)})
    assert torch.equal(room, values[35:, 4:7].float())


@pytest.mark.parametrize("name", [EMBEDDING, HEAD, "model.layers.0.self_attn.k_proj.weight"])
@pytest.mark.parametrize(
    ("rows", "ids", "fits"),
    [
        (100, 0, True),
        (99, 0, False),
        (99, 99, True),
        (99, 100, False),
        (37, 30, True),
        (36, 30, False),
        (101, 30, False),
    ],
)
def test_only_a_vocabulary_may_lack_rows_and_only_those_of_no_id(
    tmp_path: Path, name: str, rows: int, ids: int, fits: bool
) -> None:
    safetensors.torch.save_file({name: torch.ones(rows, 2)}, tmp_path / "model.safetensors")
    right = fits if name in (EMBEDDING, HEAD) else rows == 100
    with nullcontext() if right else pytest.raises(Refused, match=rf"{name} has shape \[{rows}, 2\], this model needs"):
        shape = (100, 2)
        load_pretrained(f"file://{tmp_path}", {full_box(name, shape): torch.zeros(shape)}, {name: shape}, ids=ids)


FIELD = r" \(set model\.config\.vocabulary to 36\)"


@pytest.mark.parametrize(
    ("name", "ids", "hint"),
    [
        (EMBEDDING, 30, FIELD),
        (HEAD, 36, FIELD),
        (HEAD, 37, r" \(the tokenizer has 37 ids: give the tokenizer of these weights, or add rows to them\)"),
        ("model.layers.0.self_attn.k_proj.weight", 30, ""),
    ],
)
def test_a_table_of_the_vocabulary_with_other_rows_hints_at_its_field_if_it_has_the_ids(
    tmp_path: Path, name: str, ids: int, hint: str
) -> None:
    safetensors.torch.save_file({name: torch.ones(36, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(Refused, match=rf"has shape \[36, 2\], this model needs \[100, 2\]{hint}; change"):
        load_pretrained(f"file://{tmp_path}", {}, {name: (100, 2)}, ids=ids)


@pytest.mark.parametrize("width", [1, 3])
def test_a_vocabulary_that_lacks_rows_has_the_models_width(tmp_path: Path, width: int) -> None:
    safetensors.torch.save_file({EMBEDDING: torch.ones(99, width)}, tmp_path / "model.safetensors")
    with pytest.raises(Refused, match=rf"{EMBEDDING} has shape \[99, {width}\], this model needs \[100, 2\]; change"):
        room = {full_box(EMBEDDING, (100, 2)): torch.zeros(100, 2)}
        load_pretrained(f"file://{tmp_path}", room, {EMBEDDING: (100, 2)}, ids=99)


def ranges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the ranges that are read from now on."""
    sizes: list[int] = []
    plain = Store.get_range

    def counted(self: Store, key: str, start: int, stop: int, etag: str = "") -> bytes:
        sizes.append(stop - start)
        return plain(self, key, start, stop, etag)

    monkeypatch.setattr(Store, "get_range", counted)
    return sizes


@pytest.mark.parametrize("piece", [1, 100, 1 << 20])
def test_a_box_is_read_in_pieces_of_bounded_size_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    values = torch.arange(320.0).view(SHAPE)
    safetensors.torch.save_file({"w": values}, tmp_path / "model.safetensors")
    sizes, room = ranges(monkeypatch), torch.zeros(13, 8)
    load_pretrained(f"file://{tmp_path}", {Box("w", (7, 0), (13, 8)): room}, {"w": SHAPE}, piece_bytes=piece)
    assert torch.equal(room, values[7:20])
    assert sum(sizes[2:]) == 13 * 8 * 4
    assert max(sizes[2:]) <= max(piece, 8 * 4)


def sparse_70b(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """A checkpoint of 70 billion zeros in bf16, in files with holes and an index; its bytes."""
    at = {name: f"model-{i // 50:05d}.safetensors" for i, name in enumerate(shapes)}
    for key in sorted(set(at.values())):
        table, end = {}, 0
        for name in (n for n in shapes if at[n] == key):
            begin, end = end, end + 2 * prod(shapes[name])
            table[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [begin, end]}
        header = json.dumps(table).encode()
        with (folder / key).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + end)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": at}))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def test_a_rank_of_70_billion_parameters_reads_its_own_rows_and_holds_one_piece_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = PRESETS["llama-3.1-70b"]
    shapes = {spec.name: spec.shape for spec in parameter_specs(model, model.vocabulary)}
    assert sparse_70b(tmp_path, shapes) > 141e9
    mine = [box for name, shape in shapes.items() if (box := zero_shard(full_box(name, shape), 4096, 77))]
    state = {box: torch.full(box.shape, 5.0, dtype=torch.bfloat16) for box in mine}
    sizes = ranges(monkeypatch)
    tracemalloc.start()
    load_pretrained(tmp_path.as_uri(), state, shapes, model=None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    headers = 2 * len(list(tmp_path.glob("*.safetensors")))
    assert sum(sizes[headers:]) == 2 * sum(box.elements for box in mine)
    assert max(sizes) <= foreign_files.PIECE_BYTES
    assert peak < 3 * foreign_files.PIECE_BYTES
    assert not any(bool(values.any()) for values in state.values())


def test_a_file_without_a_tensor_beside_the_weights_is_no_damaged_one(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.ones(SHAPE)}, tmp_path / "a.safetensors")
    safetensors.torch.save_file({}, tmp_path / "b.safetensors")
    room = torch.zeros(SHAPE)
    load_pretrained(f"file://{tmp_path}", {full_box("w", SHAPE): room}, {"w": SHAPE})
    assert room.eq(1.0).all()


def test_a_folders_subfolders_are_not_read_for_weights(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    safetensors.torch.save_file({"w": torch.ones(SHAPE)}, tmp_path / "model.safetensors")
    safetensors.torch.save_file({"w": torch.zeros(SHAPE)}, tmp_path / "old" / "model.safetensors")
    room = torch.zeros(SHAPE)
    load_pretrained(f"file://{tmp_path}", {full_box("w", SHAPE): room}, {"w": SHAPE})
    assert room.eq(1.0).all()


def test_a_folder_may_have_a_name_like_that_of_a_file_of_weights(tmp_path: Path) -> None:
    folder, room = tmp_path / "model.safetensors.d", torch.zeros(SHAPE)
    folder.mkdir()
    safetensors.torch.save_file({"w": torch.ones(SHAPE)}, folder / "model.safetensors")
    load_pretrained(f"file://{folder}", {full_box("w", SHAPE): room}, {"w": SHAPE})
    assert room.eq(1.0).all()


def test_weights_are_read_with_the_endpoint_and_the_secrets_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[tuple[object, ...]]()

    def opens(uri: str, endpoint: EndpointConfig, secrets: Path | None) -> Store:
        opened.append((uri, endpoint, secrets))
        return open_store(f"file://{tmp_path}")

    safetensors.torch.save_file({"w": torch.ones(SHAPE)}, tmp_path / "model.safetensors")
    monkeypatch.setattr(foreign_files, "open_store", opens)
    given = EndpointConfig(url="https://minio:9000")
    load_pretrained("s3://b/w", {}, {"w": SHAPE}, tmp_path, given)
    load_pretrained("s3://b/w/model.safetensors", {}, {"w": SHAPE})
    assert opened == [("s3://b/w", given, tmp_path), ("s3://b/w", EndpointConfig(), None)]


@pytest.mark.parametrize("error", [NotFound, BucketNotFound])
def test_weights_in_a_folder_or_a_bucket_that_does_not_exist_are_the_users_fault(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def opens(*_: object) -> Store:
        raise error("b")

    monkeypatch.setattr(foreign_files, "open_store", opens)
    with pytest.raises(Refused, match=r"model\.initFrom 's3://b/w': does not exist"):
        load_pretrained("s3://b/w", {}, {"w": SHAPE})


@pytest.mark.parametrize("name", ["w", "another"])
def test_weights_of_another_model_are_refused_by_name(tmp_path: Path, name: str) -> None:
    safetensors.torch.save_file({name: torch.ones(40, 9)}, tmp_path / "model.safetensors")
    with pytest.raises(Refused, match=r"w (is missing|has shape \[40, 9\]), this model needs \[40, 8\]") as refused:
        load_pretrained(f"file://{tmp_path}", {full_box("w", SHAPE): torch.zeros(SHAPE)}, {"w": SHAPE})
    assert refused.value.reason == "ForeignWeights"


def test_a_model_of_ones_own_is_compared_by_its_tensors_alone(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.ones(SHAPE)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "gemma"}')
    model, room = replace(training.MODEL, custom=CustomModel(path="own:Model")), torch.zeros(SHAPE)
    load_pretrained(f"file://{tmp_path}", {full_box("w", SHAPE): room}, {"w": SHAPE}, model=model)
    assert room.eq(1.0).all()
    with pytest.raises(Refused, match=r"v is missing, this model needs \[40, 8\]; change model\.config"):
        load_pretrained(f"file://{tmp_path}", {}, {"w": SHAPE, "v": SHAPE}, model=model)


@pytest.mark.parametrize(("unknown", "says"), [("abc", "no a, b, c;"), ("abcde", "no a, b, c and 2 more;")])
def test_of_weights_that_a_model_lacks_three_are_named(tmp_path: Path, unknown: str, says: str) -> None:
    names = dict.fromkeys(("w", *unknown), SHAPE)
    safetensors.torch.save_file({name: torch.ones(SHAPE) for name in names}, tmp_path / "model.safetensors")
    with pytest.raises(Refused, match=f"this model has {says} change"):
        load_pretrained(f"file://{tmp_path}", {}, {"w": SHAPE})


def test_a_head_beside_no_embedding_is_a_weight_that_the_model_lacks(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.ones(SHAPE), HEAD: torch.ones(SHAPE)}, tmp_path / "model.safetensors")
    with pytest.raises(Refused, match=rf"this model has no {HEAD}"):
        load_pretrained(f"file://{tmp_path}", {}, {"w": SHAPE})


def test_weights_that_are_replaced_while_they_are_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of both would be trained on."""
    safetensors.torch.save_file({"w": torch.ones(SHAPE)}, tmp_path / "model.safetensors")
    plain, sizes = Store.get_range, list[int]()

    def replaced(self: Store, key: str, start: int, stop: int, etag: str = "") -> bytes:
        if len(sizes) == 4:
            safetensors.torch.save_file({"w": torch.zeros(SHAPE)}, tmp_path / "model.safetensors")
        sizes.append(stop - start)
        return plain(self, key, start, stop, etag)

    monkeypatch.setattr(Store, "get_range", replaced)
    with pytest.raises(Refused, match=r"model\.safetensors was replaced since it was listed"):
        room = {full_box("w", SHAPE): torch.zeros(SHAPE)}
        load_pretrained(f"file://{tmp_path}", room, {"w": SHAPE}, piece_bytes=100)


SHORT = (
    '{"w": {"dtype": "F32", "shape": [40, 8], "data_offsets": [0, 1276]},'
    ' "b": {"dtype": "F32", "shape": [1], "data_offsets": [1276, 1280]}}'
)


@pytest.mark.parametrize(
    "table",
    ['{"w": {"dtype": "F32", "shape": [40, 8], "data_offsets": [0.5, 1280.5]}}',
     '{"w": {"dtype": "F32", "shape": [40.0, 8.0], "data_offsets": [0.0, 1280.0]}}',
     '{"w": {"dtype": "F32", "shape": [-40, -8], "data_offsets": [0, 1280]}}',
     '{"w": {"dtype": "F32", "shape": [40, 8], "data_offsets": [-1280, 0]}}',
     '{"w": {"dtype": "F32", "shape": [40, 8], "data_offsets": [0, 1280, 2560]}}',
     SHORT,
     '{"w": {"dtype": ["F32"], "shape": [40, 8], "data_offsets": [0, 1280]}}', '{"w": 1}', "[]"],
)  # fmt: skip
def test_a_table_of_others_with_numbers_that_cannot_be_is_refused_before_a_row_is_read(
    tmp_path: Path, table: str
) -> None:
    header = table.encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(1280))
    with pytest.raises(Refused, match=r"model\.safetensors.* is damaged or no safetensors file \(") as refused:
        load_pretrained(f"file://{tmp_path}", {full_box("w", SHAPE): torch.zeros(SHAPE)}, {"w": SHAPE})
    assert refused.value.reason == "ForeignWeights"


def test_a_table_longer_than_the_format_allows_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write((1 << 38).to_bytes(8, "little"))
        file.truncate(1 << 39)
    sizes = ranges(monkeypatch)
    with pytest.raises(Refused, match=r"its table has 274877906944 bytes.*; a table has at most 100000000"):
        load_pretrained(f"file://{tmp_path}", {full_box("w", SHAPE): torch.zeros(SHAPE)}, {"w": SHAPE})
    assert sizes == [8]


@pytest.mark.parametrize("index", ['{"weight_map": {"w": 3}}', '{"weight_map": ["w"]}', "{}", "[]", "\x00"])
def test_an_index_that_names_no_files_is_refused(tmp_path: Path, index: str) -> None:
    safetensors.torch.save_file({"w": torch.ones(SHAPE)}, tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(Refused, match=r"has a damaged model\.safetensors\.index\.json"):
        load_pretrained(f"file://{tmp_path}", {}, {"w": SHAPE})


@pytest.mark.parametrize(
    "content",
    ["[]", "null", '{"model_type": ["llama"]}', '{"hidden_size": "8", "num_attention_heads": 2}',
     '{"rope_parameters": "default"}', '{"rope_theta": "x"}', f'{{"rope_theta": {10**400}}}', "[" * 100_000],
    ids=str.__len__,
)  # fmt: skip
def test_a_config_that_is_none_of_a_model_is_refused_by_its_name(tmp_path: Path, content: str) -> None:
    safetensors.torch.save_file({"w": torch.ones(SHAPE)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(Refused, match=r"has a config\.json that is none of a model \(") as refused:
        load_pretrained(f"file://{tmp_path}", {}, {"w": SHAPE}, model=PRESETS["llama-3.1-70b"])
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
