"""Weights between Hugging Face's `transformers` and this engine: the same logits in both directions, foreign files by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
import safetensors.torch
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.nn import functional

from coxswain.boxes import full_box
from coxswain.config import ModelConfig, RopeScaling
from coxswain.errors import Refused
from coxswain.planlog import manifest_key
from coxswain_link.store import Store, open_store
from coxswain_train.checkpoint.export import export, main
from coxswain_train.checkpoint.foreign_files import PIECE_BYTES
from coxswain_train.checkpoint.pretrained import load_pretrained
from coxswain_train.model.attention import pack_attention
from coxswain_train.model.llama import Llama
from tests.distributed import training
from tests.distributed.ranks import run_ranks
from tests.lazy import transformers

MODEL = replace(training.MODEL, norm_epsilon=1e-5, rope_theta=500_000.0)
TOKENS = torch.randint(0, training.VOCABULARY, (90,), generator=torch.Generator().manual_seed(1))
pytestmark = pytest.mark.timeout(300)  # the first test imports transformers, and starts the ranks

ROUNDING = 2e-5  # relative to the largest logit, fp32

shapes = pytest.mark.parametrize("kv_heads", [1, 2, 4], ids=lambda n: f"{n} key heads")
heads = pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])


def theirs(
    folder: Path, model: ModelConfig, vocabulary: int = training.VOCABULARY, family: str = "Llama",
    rope: Mapping[str, object] | None = None, **save: object,
) -> Tensor:  # fmt: skip
    """Saves a random model of `transformers`; its logits. Weights are large enough for attention to matter."""
    torch.manual_seed(5)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=vocabulary, hidden_size=model.hidden, num_hidden_layers=model.layers, num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads, intermediate_size=model.feed_forward, rms_norm_eps=model.norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_theta, **(rope or {})},
        tie_word_embeddings=model.tied_head, initializer_range=0.3, max_position_embeddings=128, head_dim=model.size_of_head,
        **({"sliding_window": None} if family == "Mistral" else {}),
    )  # fmt: skip
    found = getattr(transformers, f"{family}ForCausalLM")(config)
    for name, parameter in found.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    found.save_pretrained(folder, **save)
    return their_logits(folder)


@torch.no_grad()
def their_logits(folder: Path) -> Tensor:
    found = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    return found(TOKENS[None].clamp(max=found.config.vocab_size - 1)).logits[0]


def ours(
    uri: str, model: ModelConfig, vocabulary: int = training.VOCABULARY, ids: int = 0, piece_bytes: int = PIECE_BYTES
) -> Llama:
    """What the weights lack is random, as in a job that begins."""
    found, draw = Llama(model, vocabulary, ids=ids), torch.Generator().manual_seed(3)
    state = {full_box(name, tuple(p.shape)): p.data.normal_(generator=draw) for name, p in found.weights().items()}
    load_pretrained(uri, state, {box.name: box.shape for box in state}, model=model, ids=ids, piece_bytes=piece_bytes)
    found.leave_out_empty_rows()
    return found


def empty_head_from(folder: Path, row: int) -> None:
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    stored["lm_head.weight" if "lm_head.weight" in stored else "model.embed_tokens.weight"][row:] = 0
    safetensors.torch.save_file(stored, folder / "model.safetensors", {"format": "pt"})


def last_hidden(model: Llama, tokens: Tensor) -> Tensor:
    positions = torch.arange(len(tokens))
    hidden, rotary = model.embed(tokens, positions), model.rotary(positions)
    for layer in model.stack:
        hidden = layer(hidden, rotary, pack_attention([len(tokens)]))
    return hidden


@torch.no_grad()
def our_logits(model: Llama, tokens: Tensor = TOKENS) -> Tensor:
    hidden = last_hidden(model, tokens)
    head = model.model.embed_tokens if model.lm_head is None else model.lm_head
    return functional.linear(model.model.norm(hidden), head.weight)


def run(folder: Path, model: ModelConfig, ranks: int, ids: int = 0) -> Store:
    """The checkpoint of a job that begins, and saves before its first step."""
    store = open_store(folder.as_uri(), create=True)
    shards = [s for mine in run_ranks(ranks, training.start_and_save, model, folder.as_uri(), ids) for s in mine]
    whole_manifest = replace(training.manifest(0, tuple(shards)), model=model, longest=128, ids=ids)
    store.put(manifest_key(0), msgspec.json.encode(whole_manifest))
    store.put(f"{manifest_key(0)}.bak", b"{")  # a copy that a user has made
    return store


def assert_same(mine: Tensor, other: Tensor) -> None:
    assert float((mine - other).abs().max() / other.abs().max()) < ROUNDING


LLAMA3 = RopeScaling(
    kind="Llama3", factor=8.0, original_context=64, low_frequency_factor=0.5, high_frequency_factor=2.5
)
FAMILIES = {
    "Llama 3.1": ("Llama", {"rope_scaling": LLAMA3}, {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.5, "high_freq_factor": 2.5,
        "original_max_position_embeddings": 64,
    }),
    "Llama, longer": ("Llama", {"rope_scaling": RopeScaling(kind="Linear", factor=4.0)}, {"rope_type": "linear", "factor": 4.0}),
    "Llama, heads of their own size": ("Llama", {"head_size": 12}, {}),
    "Mistral": ("Mistral", {"head_size": 16}, {}),
    "Qwen 2.5": ("Qwen2", {"qkv_bias": True}, {}),
    "Qwen 3": ("Qwen3", {"qk_norm": True, "head_size": 16, "norm_epsilon": 0.1}, {}),
}  # fmt: skip
families = pytest.mark.parametrize("family", FAMILIES)


@families
def test_a_checkpoint_of_each_family_gives_the_logits_of_transformers_and_its_export_again(tmp_path, family):
    name, fields, rope = FAMILIES[family]
    model = replace(MODEL, rope_theta=100.0, **fields)
    logits = theirs(tmp_path / "in", model, family=name, rope=rope)
    assert_same(our_logits(ours((tmp_path / "in").as_uri(), model)), logits)
    export(run(tmp_path / "run", replace(model, init_from=(tmp_path / "in").as_uri()), ranks=1), tmp_path / "out")
    assert torch.equal(their_logits(tmp_path / "out"), logits)


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        ("Mistral", {"sliding_window": 32}, "sliding_window is 32, this engine's attention has none"),
        ("Qwen 2.5", {"use_sliding_window": True, "sliding_window": 32}, "sliding_window is 32"),
        ("Qwen 3", {"head_dim": 8}, r"head_dim is 8, this job's model\.config\.headSize is 16"),
        ("Llama 3.1", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}, "ropeScaling means 'llama3'"),
        (
            "Llama 3.1",
            {"rope_parameters": {**FAMILIES["Llama 3.1"][2], "rope_theta": 100.0, "factor": 4.0}},
            r"factor is 4\.0, .*has 8",
        ),
    ],
)
def test_a_familys_own_fields_are_compared_too(tmp_path, family, changes, says):
    name, fields, rope = FAMILIES[family]
    model = replace(MODEL, rope_theta=100.0, **fields)
    theirs(tmp_path, model, family=name, rope=rope)
    edit(tmp_path, **changes)
    with pytest.raises(Refused, match=says):
        ours(tmp_path.as_uri(), model)


def test_a_config_of_mistral_that_names_no_window_has_one(tmp_path):
    theirs(tmp_path, MODEL, family="Mistral")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "sliding_window"}))
    with pytest.raises(Refused, match="sliding_window is 4096"):
        ours(tmp_path.as_uri(), MODEL)


@shapes
@heads
def test_a_checkpoint_of_transformers_gives_the_same_logits_here(tmp_path, kv_heads, tied):
    model = replace(MODEL, kv_heads=kv_heads, tied_head=tied)
    logits = theirs(tmp_path, model)
    assert_same(our_logits(ours(tmp_path.as_uri(), model)), logits)


def test_a_checkpoint_in_several_files_is_read_whole(tmp_path):
    logits = theirs(tmp_path, MODEL, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    assert_same(our_logits(ours(tmp_path.as_uri(), MODEL)), logits)


@heads
@pytest.mark.parametrize(("kv_heads", "ranks"), [(1, 2), (2, 1), (4, 2)])
def test_what_came_from_transformers_goes_back_bit_for_bit_through_a_job_and_its_checkpoint(
    tmp_path, kv_heads, tied, ranks
):
    model = replace(MODEL, kv_heads=kv_heads, tied_head=tied)
    logits = theirs(tmp_path / "in", model)
    job = replace(model, init_from=(tmp_path / "in").as_uri())
    assert export(run(tmp_path / "run", job, ranks), tmp_path / "out") == 0
    before, after = (safetensors.torch.load_file(tmp_path / f / "model.safetensors") for f in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(their_logits(tmp_path / "out"), logits)


def test_a_job_of_its_own_gives_the_same_logits_in_transformers(tmp_path):
    export(run(tmp_path / "run", MODEL, ranks=2), tmp_path / "out")
    assert_same(our_logits(ours((tmp_path / "out").as_uri(), MODEL)), their_logits(tmp_path / "out"))


def test_a_vocabulary_that_is_no_multiple_of_64_keeps_its_rows(tmp_path):
    logits = theirs(tmp_path, MODEL, vocabulary=50)
    model = ours(tmp_path.as_uri(), MODEL, ids=50)
    mine = our_logits(model, TOKENS.clamp(max=49))
    assert_same(mine[:, :50], logits)


@heads
def test_the_loss_of_imported_weights_leaves_out_the_rows_that_rounding_adds(tmp_path, tied):
    """As in transformers, which has no such rows; their gradient is zero, so they stay as they are."""
    model = replace(MODEL, tied_head=tied)
    labels = TOKENS.clamp(max=49).roll(-1)
    loss = functional.cross_entropy(theirs(tmp_path, model, vocabulary=50), labels, reduction="sum")
    mine = ours(tmp_path.as_uri(), model, ids=50)
    total = mine.token_losses(last_hidden(mine, TOKENS.clamp(max=49)), labels)
    total.backward()
    assert float((total.detach() - loss).abs() / loss) < ROUNDING
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in mine.weights():
            assert float(mine.weights()[name].grad[50:].abs().max()) == 0
            assert float(mine.weights()[name].grad[:50].abs().max()) > 0


@heads
def test_ids_whose_rows_are_zero_in_imported_weights_count_in_the_loss_and_may_be_labels(tmp_path, tied):
    """Llama 3 has such rows at the end of its head: ids that its pretraining did not use, which a fine-tuning may."""
    model = replace(MODEL, tied_head=tied)
    theirs(tmp_path, model)
    empty_head_from(tmp_path, 56)
    labels = TOKENS.roll(-1).clamp(max=61)
    assert int(labels.max()) == 61
    loss = functional.cross_entropy(their_logits(tmp_path)[:, :62], labels, reduction="sum")
    mine = ours(tmp_path.as_uri(), model, ids=62)
    total = mine.token_losses(last_hidden(mine, TOKENS), labels)
    assert float((total.detach() - loss).abs() / loss) < ROUNDING
    total.backward()
    head = mine.weights()["model.embed_tokens.weight" if tied else "lm_head.weight"]
    assert float(head.grad[61].abs().max()) > 0


@pytest.mark.parametrize(("rows", "ids", "says"), [
    (50, 55, r"\[50, 32\], .* \[64, 32\] \(the tokenizer has 55 ids: give the tokenizer of these weights"),
    (50, 0, r"\[50, 32\], .* \[64, 32\] \(set model\.config\.vocabulary to 50\)"),
    (90, 55, r"\[90, 32\], .* \[64, 32\] \(set model\.config\.vocabulary to 90\)"),
])  # fmt: skip
def test_a_vocabulary_that_is_not_the_tokenizers_is_refused_with_the_way_out(tmp_path, rows, ids, says):
    theirs(tmp_path, MODEL, vocabulary=rows)
    with pytest.raises(Refused, match=f"embed_tokens.weight has shape {says}"):
        ours(tmp_path.as_uri(), MODEL, ids=ids)


def test_tables_may_lack_63_rows_that_round_a_vocabulary_up_and_not_64(tmp_path):
    """Rounding adds no more: a model with these was given another vocabulary."""
    logits = theirs(tmp_path, MODEL)
    assert_same(our_logits(ours(tmp_path.as_uri(), MODEL, vocabulary=127, ids=64))[:, :64], logits)
    with pytest.raises(Refused, match=r"has shape \[64, 32\], this model needs \[128, 32\]"):
        ours(tmp_path.as_uri(), MODEL, vocabulary=128, ids=64)


def test_a_file_with_fewer_key_heads_is_refused_though_it_has_no_config(tmp_path):
    theirs(tmp_path, replace(MODEL, kv_heads=1))
    (tmp_path / "config.json").unlink()
    with pytest.raises(Refused, match=r"k_proj\.weight has shape \[8, 32\], this model needs \[16, 32\]"):
        ours(tmp_path.as_uri(), MODEL)


def test_files_that_the_index_does_not_name_are_not_read(tmp_path):
    logits = theirs(tmp_path, MODEL, max_shard_size="8KB")
    safetensors.torch.save_file({"layers.0.attention.wq.weight": torch.zeros(2)}, tmp_path / "consolidated.safetensors")
    assert_same(our_logits(ours(tmp_path.as_uri(), MODEL)), logits)


@pytest.mark.parametrize("left", [False, True], ids=["without its shards", "with its shards"])
def test_a_single_file_beside_the_index_of_an_earlier_save_is_what_transformers_reads_too(tmp_path, left):
    theirs(tmp_path, MODEL, max_shard_size="8KB")
    shards = {f.name: f.read_bytes() for f in (tmp_path).glob("model-*")}
    logits = theirs(tmp_path, MODEL)
    for name, data in shards.items() if left else ():
        stored = safetensors.torch.load(data)
        safetensors.torch.save_file({key: value + 1 for key, value in stored.items()}, tmp_path / name)
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert_same(our_logits(ours((tmp_path).as_uri(), MODEL)), logits)


def test_a_file_of_the_single_ones_name_that_the_index_names_is_read_with_all_others(tmp_path):
    logits = theirs(tmp_path, MODEL, max_shard_size="8KB")
    index, first = tmp_path / "model.safetensors.index.json", min(tmp_path.glob("model-*"))
    index.write_text(index.read_text().replace(first.name, "model.safetensors"))
    first.rename(tmp_path / "model.safetensors")
    assert_same(our_logits(ours(tmp_path.as_uri(), MODEL)), logits)


@pytest.mark.parametrize(("harm", "says"), [
    (lambda folder: sorted(folder.glob("model-*"))[0].unlink(), "index.json names model-00001-of-.*, which does not exist"),
    (lambda folder: (folder / "model.safetensors.index.json").write_text("{}"), r"damaged model\.safetensors\.index\.json"),
    (lambda folder: [
        (folder / "model.safetensors.index.json").unlink(),
        safetensors.torch.save_file({"model.norm.weight": torch.ones(32)}, folder / "norm.safetensors"),
    ], r"model\.norm\.weight is in .* and in norm\.safetensors"),
])  # fmt: skip
def test_a_torn_set_of_files_is_refused_by_name(tmp_path, harm, says):
    theirs(tmp_path, MODEL, max_shard_size="8KB")
    harm(tmp_path)
    with pytest.raises(Refused, match=says):
        ours(tmp_path.as_uri(), MODEL)


@heads
def test_an_export_has_the_rows_of_the_weights_that_came_in(tmp_path, tied):
    model = replace(MODEL, tied_head=tied, init_from=(tmp_path / "in").as_uri())
    logits = theirs(tmp_path / "in", model, vocabulary=50)
    export(run(tmp_path / "run", model, ranks=2, ids=50), tmp_path / "out")
    assert torch.equal(their_logits(tmp_path / "out"), logits)


def test_an_export_keeps_rows_of_the_embedding_where_those_of_the_head_came_in_as_zero(tmp_path):
    model = replace(MODEL, init_from=(tmp_path / "in").as_uri())
    theirs(tmp_path / "in", model)
    empty_head_from(tmp_path / "in", 56)
    logits = their_logits(tmp_path / "in")
    export(run(tmp_path / "run", model, ranks=2, ids=64), tmp_path / "out")
    assert torch.equal(their_logits(tmp_path / "out"), logits)


def test_an_export_has_the_rows_of_all_ids_though_they_came_in_as_zero_and_begins_another_job(tmp_path):
    """As of ids that a pretraining did not use: the tokenizer beside the export has them."""
    model = replace(MODEL, tied_head=True, init_from=(tmp_path / "in").as_uri())
    theirs(tmp_path / "in", model)
    empty_head_from(tmp_path / "in", 56)
    logits = their_logits(tmp_path / "in")
    export(run(tmp_path / "run", model, ranks=2, ids=64), tmp_path / "out")
    assert torch.equal(their_logits(tmp_path / "out"), logits)
    assert_same(our_logits(ours((tmp_path / "out").as_uri(), model, ids=64)), logits)


def test_a_vocabulary_set_to_the_rows_of_the_file_has_the_loss_of_transformers(tmp_path):
    labels = TOKENS.clamp(max=49).roll(-1)
    loss = functional.cross_entropy(theirs(tmp_path, MODEL, vocabulary=50), labels)
    mine = functional.cross_entropy(our_logits(ours(tmp_path.as_uri(), MODEL, 50), TOKENS.clamp(max=49)), labels)
    assert float((mine - loss).abs()) < ROUNDING


def edit(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
            "rope_theta is 10000, .*ropeTheta is 500000",
        ),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0}}, "rope_type is 'llama3'"),
        ({"rope_parameters": None, "rope_theta": 1e6}, r"rope_theta is 1e\+06"),
        (
            {"num_attention_heads": 8, "num_key_value_heads": None},
            "num_attention_heads is 8, this job's model.config.heads is 4; num_key_value_heads",
        ),
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps is 1e-06, this job's model.config.normEpsilon is 1e-05"),
        ({"hidden_act": "gelu"}, "hidden_act is gelu, this engine's is silu"),
        ({"sliding_window": 4096, "model_type": "mistral"}, "sliding_window is 4096"),
        ({"model_type": "mistral", "sliding_window": None, "num_key_value_heads": 4}, "num_key_value_heads is 4"),
        ({"model_type": "gemma"}, "model_type is 'gemma', allowed are llama, mistral, qwen2, qwen3"),
        ({"model_type": "qwen2"}, "model_type is 'qwen2', this job's model.config.qkvBias is None"),
        ({"model_type": "qwen3"}, "model_type is 'qwen3', this job's model.config.qkNorm is None"),
        (
            {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5e5},
            "is 'linear'",
        ),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 5e5}},
            "'dynamic', allowed are default",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, this engine's is 1.0"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor is 0.5, this engine's is 1.0",
        ),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"attention_bias": True}, "attention_bias is True"),
    ],
)
def test_weights_of_another_computation_are_refused_though_their_shapes_fit(tmp_path, changes, says):
    theirs(tmp_path, MODEL)
    edit(tmp_path, **changes)
    with pytest.raises(Refused, match=says) as caught:
        ours(tmp_path.as_uri(), MODEL)
    assert caught.value.reason == "ForeignWeights"


def rewrite(path: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop("lm_head.weight"), r"lm_head\.weight is missing, .*config\.json says tie_word_embeddings: false"),
        (lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}), r"has no model\.layers\.0.*q_proj\.bias"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(31)}), r"model\.norm\.weight has shape \[31\], .* needs \[32\]"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(32).to(torch.int8)}), "is of type I8; allowed are F64"),
    ],
    ids=["missing head", "unknown weight", "another shape", "integers"],
)  # fmt: skip
def test_files_whose_weights_are_not_those_of_the_model_are_refused_by_name(tmp_path, change, says):
    theirs(tmp_path, MODEL)
    rewrite(tmp_path / "model.safetensors", change)
    with pytest.raises(Refused, match=says):
        ours(tmp_path.as_uri(), MODEL)


def test_buffers_of_older_files_are_ignored_and_the_weights_beside_them_read(tmp_path):
    logits = theirs(tmp_path, MODEL)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    rewrite(tmp_path / "model.safetensors", lambda t: t.update(extra))
    assert_same(our_logits(ours(tmp_path.as_uri(), MODEL)), logits)


@pytest.mark.parametrize("harm", ["truncated", "longer", "empty", "garbage", "cut table", "another size"])
def test_a_damaged_file_of_weights_is_refused_by_its_name(tmp_path, harm):
    theirs(tmp_path, MODEL)
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    harms = {
        "truncated": data[:-7],
        "longer": data + b"x" * 8,
        "empty": b"",
        "garbage": b"x" * 99,
        "cut table": data[:50],
    }
    harms["another size"] = data.replace(b'"F32"', b'"F16"', 1)
    path.write_bytes(harms[harm])
    with pytest.raises(Refused, match=r"model\.safetensors.* is damaged or no safetensors file"):
        ours(tmp_path.as_uri(), MODEL)


@pytest.mark.parametrize(
    ("name", "says"),
    [("nowhere", "': does not exist"), ("empty", "no safetensors file"), ("x.safetensors", "': does not exist")],
)
def test_weights_that_are_not_there_are_refused_by_their_uri(tmp_path, name, says):
    (tmp_path / "empty").mkdir()
    with pytest.raises(Refused, match=rf"model\.initFrom .*{name}.*{says}"):
        ours((tmp_path / name).as_uri(), MODEL)


def test_the_export_command_says_what_it_wrote_and_refuses_by_name(tmp_path, capsys):
    uri, out = run(tmp_path / "run", MODEL, ranks=1).uri, str(tmp_path / "out")
    assert main([uri, out]) == 0
    assert "weights after 0 steps" in capsys.readouterr().out
    for arguments, says in (
        ([uri, f"{out}-2", "7"], "holds no checkpoint of step 7"), ([uri, f"{out}-2", "new"], "STEP 'new'"),
        ([f"{uri}/no", f"{out}-2"], "does not exist"), ([tmp_path.as_uri(), f"{out}-2"], "NoCheckpoint"),
    ):  # fmt: skip
        assert main(arguments) == 2
        assert says in capsys.readouterr().err
    assert not (tmp_path / "out-2").exists()


ON_A_SMALL_DISK = 'mount -t tmpfs -o size=64k tmpfs "$0" && "$@"; code=$?; ls -A "$0"; exit $code'


@pytest.mark.parametrize("output", ["weights.safetensors", "folder"])
def test_an_export_onto_a_full_disk_says_so_and_leaves_nothing(tmp_path, output):
    """The disk is smaller than the weights. It is of a mount namespace of its own, and vanishes with it."""
    uri, disk = run(tmp_path / "run", MODEL, ranks=1).uri, tmp_path / "disk"
    disk.mkdir()
    export = (sys.executable, "-m", "coxswain_train.checkpoint.export", uri, str(disk / output))
    own = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))
    done = subprocess.run([*own, "bash", "-c", ON_A_SMALL_DISK, str(disk), *export], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "No space left on device" in done.stderr and f"{disk}/.{output}.partial" in done.stderr
    assert "Traceback" not in done.stderr
