"""Exported folders are whole, in files of bounded size, and read by `transformers` with the job's tokenizer."""

from __future__ import annotations

import json
import os
import re
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
import safetensors.torch
import tokenizers
import torch
from msgspec.structs import replace
from torch import Tensor

from coxswain.boxes import full_box, window, zero_shard
from coxswain.config import CustomModel, EndpointConfig, ModelConfig, TokenizerConfig
from coxswain.errors import Refused
from coxswain.exits import INTERRUPTED
from coxswain.models import parameter_specs
from coxswain.planlog import manifest_key
from coxswain.wire import Shard
from coxswain_data.tokenizer import open_tokenizer
from coxswain_link.store import Store, open_store
from coxswain_train.checkpoint import save_load
from coxswain_train.checkpoint.export import Options, export, main
from coxswain_train.checkpoint.pretrained import EMBEDDING, HEAD
from coxswain_train.checkpoint.safetensors_out import OutputFile, divided, writing
from coxswain_train.checkpoint.tokenizer_out import BYTES_EOS, bytes_tokenizer, write_tokenizer
from coxswain_train.parallel.state import KINDS
from tests.distributed import training
from tests.distributed.test_hugging_face import MODEL, TOKENS, our_logits, ours, their_logits
from tests.lazy import transformers

pytestmark = pytest.mark.timeout(300)  # the first test imports transformers
TEXT = "Ein Schiff, which 帆 carries <|endoftext|>\n\tno sail."


def drawn(model: ModelConfig, vocabulary: int = training.VOCABULARY) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(9)
    specs = parameter_specs(model, vocabulary)
    return {s.name: torch.randn(s.shape, generator=draw) * (0.3 if len(s.shape) > 1 else 1.0) for s in specs}


def checkpoint(
    folder: Path, weights: Mapping[str, Tensor], model: ModelConfig | None, owners: int = 3, shard_bytes: int = 20_000,
    tokenizer: TokenizerConfig | None = None,
) -> Store:  # fmt: skip
    """As ranks save it: each has its rows of every tensor, in shards, with moments of other values behind the parameters."""
    store = open_store(folder.as_uri(), create=True)
    shards = []
    for owner in range(owners):
        wholes = [full_box(name, tuple(values.shape)) for name, values in weights.items()]
        mine = [(whole, box) for whole in wholes if (box := zero_shard(whole, owners, owner))]
        entries = [
            (kind, box, weights[box.name][window(whole, box)] * factor)
            for factor, kind in enumerate(KINDS, 1)
            for whole, box in mine
        ]
        shards += save_load.write_shards(store, entries, shard_bytes)
    whole = replace(training.manifest(3, tuple(shards)), model=model, longest=128, tokenizer=tokenizer)
    store.put(manifest_key(3), msgspec.json.encode(whole))
    return store


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_export_in_several_files_gives_the_logits_of_its_weights(tmp_path: Path, dtype: str) -> None:
    weights = drawn(MODEL)
    store = checkpoint(tmp_path / "run", weights, MODEL)
    store.put(manifest_key(2), b"an older one is not read")
    assert export(store, tmp_path / "out", options=Options(dtype, 8_000)) == 3
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == files
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    found: dict[str, Tensor] = {}
    for name in files:
        found |= safetensors.torch.load_file(tmp_path / "out" / name)
    tables = [int.from_bytes((tmp_path / "out" / name).read_bytes()[:8], "little") for name in files]
    assert [size % 8 for size in tables] == [0] * len(files), "values of any type are aligned"
    assert index["metadata"]["total_size"] == sum(values.nbytes for values in found.values())
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name].to(kind)) for name in weights)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert loaded.dtype == kind
    with torch.no_grad():
        logits = loaded.float()(TOKENS[None]).logits[0]
    mine = our_logits(ours((tmp_path / "out").as_uri(), MODEL))
    assert float((mine - logits).abs().max() / logits.abs().max()) < 2e-5


def test_an_export_reads_every_shard_once_and_holds_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelConfig(layers=8, hidden=256, heads=4, kv_heads=4, feed_forward=1024)
    weights = drawn(model)
    store = checkpoint(tmp_path / "run", weights, model, owners=2, shard_bytes=1 << 20)
    manifest, read = save_load.read_manifest(store, manifest_key(3)), []
    plain = Store.get
    monkeypatch.setattr(Store, "get", lambda self, key: read.append(key) or plain(self, key))
    tracemalloc.start()
    export(store, tmp_path / "out")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sorted(key for key in read if key.startswith("shards/")) == sorted(
        shard.key for shard in manifest.shards if "parameter" in shard.kinds
    )
    largest, total = max(shard.bytes for shard in manifest.shards), sum(4 * w.numel() for w in weights.values())
    assert total > 10 * largest
    assert peak < 3 * largest


def file_tokenizer(folder: Path, special: Sequence[str] = ("</s>",)) -> TokenizerConfig:
    """A small byte-level BPE, with a file beside it that the export must keep."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(special), initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    trained.train_from_iterator([TEXT * 3, "carries carried sailing sails"], trainer)
    folder.mkdir()
    trained.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 99}')
    return TokenizerConfig(kind="file", uri=(folder / "tokenizer.json").as_uri())


@pytest.mark.parametrize("kind", ["bytes", "file"])
def test_the_tokenizer_of_an_export_has_the_ids_of_the_jobs(tmp_path: Path, kind: str) -> None:
    config = TokenizerConfig(kind="bytes") if kind == "bytes" else file_tokenizer(tmp_path / "tokenizer")
    job = open_tokenizer(config, EndpointConfig(), None)
    model = replace(MODEL, vocabulary=320)
    export(checkpoint(tmp_path / "run", drawn(model, 320), model, tokenizer=config), tmp_path / "out")
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = TEXT.replace(BYTES_EOS, "")
    ids = found(text, add_special_tokens=False)["input_ids"]
    assert ids == job.encode(text)[:-1].tolist()
    assert found.decode(ids) == text
    assert found.eos_token_id == job.eos
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.bos_token_id, config.eos_token_id) == (None, job.eos)
    assert found.model_max_length == (128 if kind == "bytes" else 99)
    assert (tmp_path / "out" / "chat_template.jinja").exists() == (kind == "file")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    more = loaded.generate(torch.tensor([ids]), max_new_tokens=4, do_sample=False)
    assert more.shape[1] <= len(ids) + 4


def test_the_tokenizer_of_bytes_gives_every_byte_its_number() -> None:
    text = "".join(map(chr, [*range(0x800), *range(0x800, 0xD800, 61), *range(0xE000, 0x110000, 4093)]))
    assert set(text.encode()) == {*range(0xF5)} - {0xC0, 0xC1}, "no other byte is in UTF-8"
    found = tokenizers.Tokenizer.from_str(json.dumps(bytes_tokenizer()))
    assert found.encode(text).ids == list(text.encode())
    assert found.decode(list(text.encode())) == text


BOS_TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
}
OFFSETS = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize("eos_token", ["<other>", {"content": "<other>", "lstrip": False, "special": True}])
@pytest.mark.parametrize("processor", [BOS_TEMPLATE, {"type": "Sequence", "processors": [OFFSETS, BOS_TEMPLATE]}])
def test_a_text_gets_no_token_of_an_export_that_the_job_has_not_trained_on(
    tmp_path: Path, processor: dict[str, object], eos_token: object
) -> None:
    config = replace(file_tokenizer(tmp_path / "tokenizer", ["<s>", "<other>", "</s>"]), eos="</s>")
    place = tmp_path / "tokenizer" / "tokenizer.json"
    cut = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    place.write_text(json.dumps(json.loads(place.read_text()) | {"post_processor": processor, "truncation": cut}))
    special = {"bos_token": "<s>", "eos_token": eos_token}
    (tmp_path / "tokenizer" / "special_tokens_map.json").write_text(json.dumps(special))
    known = special | {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": True}
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(known))
    (tmp_path / "tokenizer" / "generation_config.json").write_text(
        '{"bos_token_id": 0, "eos_token_id": [1], "top_k": 7}'
    )
    job = open_tokenizer(config, EndpointConfig(), None)
    model = replace(MODEL, vocabulary=320)
    export(checkpoint(tmp_path / "run", drawn(model, 320), model, tokenizer=config), tmp_path / "out")
    wanted = job.encode(TEXT)[:-1].tolist()
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).encode(TEXT).ids == wanted
    kept = json.loads((tmp_path / "out" / "tokenizer.json").read_text())["post_processor"]
    assert kept == (None if processor is BOS_TEMPLATE else {"type": "Sequence", "processors": [OFFSETS]})
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (found(TEXT)["input_ids"], found.eos_token_id) == (wanted, job.eos)
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())  # releases differ in what they heed
    expected = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "add_eos_token": False}
    assert written | expected == written
    generation = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert (generation.bos_token_id, generation.eos_token_id, generation.top_k) == (None, job.eos, 7)


@pytest.mark.parametrize(("file_bytes", "files"), [(24, [["a", "b"]]), (23, [["a"], ["b"]]), (1, [["a"], ["b"]])])
def test_tensors_share_a_file_up_to_its_size_exactly(file_bytes: int, files: list[list[str]]) -> None:
    found = divided({"a": (2, 1), "b": (4,)}, torch.float32, file_bytes)
    assert [list(file.shapes) for file in found] == files


def test_every_file_of_weights_takes_as_many_as_the_first() -> None:
    found = divided(dict.fromkeys("abcde", (2,)), torch.float32, 16)
    assert [list(file.shapes) for file in found] == [["a", "b"], ["c", "d"], ["e"]]


def test_a_file_of_weights_says_that_its_tensors_are_torchs(tmp_path: Path) -> None:
    """Releases of transformers before 5 read no other."""
    with writing(tmp_path, [OutputFile("w.safetensors", {"a": (2, 3)})], torch.float32) as writer:
        writer.put(full_box("a", (2, 3)), torch.ones(2, 3))
    with safetensors.safe_open(tmp_path / "w.safetensors", "pt") as found:
        assert found.metadata() == {"format": "pt"}
        assert torch.equal(found.get_tensor("a"), torch.ones(2, 3))


@pytest.mark.parametrize(("eos", "token"), [("", 2), ("a", 1), ("b", None)])
def test_the_end_of_a_text_in_a_unigram_tokenizer_is_found_by_its_place(
    tmp_path: Path, eos: str, token: int | None
) -> None:
    words = [["<unk>", 0.0], ["a", -1.0], ["</s>", 0.0]]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram", "vocab": words}}))
    (tmp_path / "out").mkdir()
    given = TokenizerConfig(kind="file", uri=(tmp_path / "tokenizer.json").as_uri(), eos=eos)
    assert write_tokenizer(tmp_path / "out", given, 128) == token


def test_the_end_of_a_text_may_be_a_word_of_the_vocabulary_alone(tmp_path: Path) -> None:
    """Or a token that was added: its own number counts then."""
    content = {"model": {"type": "WordLevel", "vocab": {"ab": 0, "</s>": 7}}}
    given = TokenizerConfig(kind="file", uri=(tmp_path / "in.json").as_uri())
    for added, token in ([], 7), ([{"content": "</s>", "id": 9}], 9):
        (tmp_path / "in.json").write_text(json.dumps(content | {"added_tokens": added}))
        assert write_tokenizer(tmp_path, given, 128) == token


def test_a_tokenizer_without_an_end_of_a_text_is_exported_without_one(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    given = file_tokenizer(tmp_path / "tokenizer", ["<s>"])
    (tmp_path / "tokenizer" / "generation_config.json").write_text('{"eos_token_id": 2}')
    assert write_tokenizer(tmp_path / "out", given, 128) is None
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["eos_token"] is None
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] is None


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_the_flags_that_a_file_has_of_the_jobs_own_end_of_a_text_are_kept(tmp_path: Path, name: str) -> None:
    given, token = file_tokenizer(tmp_path / "tokenizer"), {"content": "</s>", "lstrip": True, "special": True}
    (tmp_path / "tokenizer" / name).write_text(json.dumps({"eos_token": token}))
    write_tokenizer(tmp_path, given, 128)
    assert json.loads((tmp_path / name).read_text())["eos_token"] == token


def test_an_exported_tokenizer_neither_cuts_a_text_nor_pads_it(tmp_path: Path) -> None:
    given = file_tokenizer(tmp_path / "tokenizer")
    found = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
    found.enable_padding(length=64)
    found.enable_truncation(4)
    found.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    write_tokenizer(tmp_path, given, 128)
    written = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert (written.padding, written.truncation) == (None, None)


@pytest.mark.parametrize(
    "content",
    [
        b"\x0a\x0e\xff",
        b"[]",
        b'{"model": {"vocab": 3}}',
        b'{"post_processor": {"type": "Sequence"}}',
        b'{"post_processor": 3}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_by_its_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sp.model").write_bytes(content)
    given = TokenizerConfig(kind="file", uri=(tmp_path / "sp.model").as_uri())
    with pytest.raises(Refused, match=r"sp\.model': is no tokenizer\.json \(.*; give --tokenizer PATH"):
        write_tokenizer(tmp_path, given, 128)


def test_an_exported_tokenizer_gives_a_text_the_same_ids_each_time_as_loaders_do(tmp_path: Path) -> None:
    given, place = file_tokenizer(tmp_path / "tokenizer"), tmp_path / "tokenizer" / "tokenizer.json"
    dropping = tokenizers.Tokenizer.from_file(str(place))
    dropping.model.dropout = 0.9
    dropping.save(str(place))
    write_tokenizer(tmp_path, given, 128)
    written = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    trained = open_tokenizer(given, EndpointConfig(), None).encode(TEXT).tolist()[:-1]
    assert [written.encode(TEXT).ids for _ in range(9)] == [trained] * 9


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_a_damaged_file_beside_a_tokenizer_is_refused_by_its_name(tmp_path: Path, name: str, content: bytes) -> None:
    given = file_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / name).write_bytes(content)
    with pytest.raises(Refused, match=rf"tokenizer\.json': {name} beside it is no JSON object .*give --tokenizer PATH"):
        write_tokenizer(tmp_path, given, 128)


def test_half_of_a_pair_of_utf_16_beside_a_tokenizer_is_written_as_it_was_read(tmp_path: Path) -> None:
    """JSON has it as an escape, and UTF-8 not at all."""
    given = file_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text('{"pad_token": "\\ud83d", "unk_token": "帆"}')
    write_tokenizer(tmp_path, given, 128)
    written = (tmp_path / "tokenizer_config.json").read_bytes()
    assert "帆".encode() in written
    assert json.loads(written) | {"pad_token": "\ud83d", "unk_token": "帆"} == json.loads(written)


def test_a_tokenizer_may_be_given_instead_of_the_jobs_or_left_out(tmp_path: Path) -> None:
    gone = TokenizerConfig(kind="file", uri=(tmp_path / "gone" / "tokenizer.json").as_uri())
    store = checkpoint(tmp_path / "run", drawn(MODEL), MODEL, tokenizer=gone)
    with pytest.raises(Refused, match=r"gone/tokenizer\.json.*give --tokenizer PATH, or --tokenizer none"):
        export(store, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    given = file_tokenizer(tmp_path / "given")
    export(store, tmp_path / "out", options=Options(tokenizer=str(tmp_path / "given" / "tokenizer.json")))
    written, own = (json.loads((tmp_path / at / "tokenizer.json").read_text()) for at in ("out", "given"))
    assert written == own
    assert given.uri.endswith("tokenizer.json")
    export(store, tmp_path / "bare", options=Options(tokenizer="none"))
    assert sorted(path.name for path in (tmp_path / "bare").iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("word", ["²", "-1", "1.0", "9" * 5000, "newest"])
def test_what_is_no_number_of_a_step_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    assert main([tmp_path.as_uri(), str(tmp_path / "out"), "--", word]) == 2
    assert re.fullmatch(
        r"BadStep: STEP '.{1,30}': allowed is the number of a checkpoint's step, or nothing\n", capsys.readouterr().err
    )


@pytest.mark.parametrize("word", ["0", "-5", "nan"])
def test_a_size_of_files_that_holds_no_weight_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    assert main([tmp_path.as_uri(), str(tmp_path / "out"), f"--file-gb={word}"]) == 2
    assert (
        capsys.readouterr().err
        == f"BadFileSize: --file-gb {float(word)}: allowed is a number above 0; 5 is the default\n"
    )


@pytest.mark.parametrize("name", ["out", "weights.safetensors"])
def test_an_interrupted_export_leaves_nothing_and_the_next_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    store = checkpoint(tmp_path / "run", drawn(MODEL), MODEL)
    calls, plain = [], save_load.read_shard

    def failing(store: Store, shard: object) -> object:
        calls.append(shard)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return plain(store, shard)  # type: ignore[arg-type]

    monkeypatch.setattr(save_load, "read_shard", failing)
    assert main([(tmp_path / "run").as_uri(), str(tmp_path / name)]) == INTERRUPTED
    assert capsys.readouterr().err == "stopped: nothing was written\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    (tmp_path / f".{name}.partial").mkdir()  # of an export that was killed by SIGKILL
    (tmp_path / f".{name}.partial" / "half").write_bytes(b"x")
    assert export(store, tmp_path / name) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["run", name])
    assert export(store, tmp_path / "new" / "folders" / name) == 3


def test_an_export_of_a_step_without_a_checkpoint_names_the_steps_that_have_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path / "run", drawn(MODEL), MODEL)
    assert main([(tmp_path / "run").as_uri(), str(tmp_path / "out"), "4"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("NoCheckpoint: ")
    assert "no checkpoint of step 4; give the STEP of one that it holds, the last of which are 3, or" in said


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "dropped"])
def test_a_checkpoint_that_its_job_drops_while_it_is_exported_is_not_said_to_be_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """As the job's coordinator drops it: the manifest first, then the shards."""
    store = checkpoint(tmp_path / "run", drawn(MODEL), MODEL)
    plain = save_load.read_shard

    def dropping(store: Store, shard: Shard) -> dict[str, Tensor]:
        store.delete("manifests/none" if kept else manifest_key(3))
        store.delete(shard.key)
        return plain(store, shard)

    monkeypatch.setattr(save_load, "read_shard", dropping)
    with pytest.raises(Refused) as refused:
        export(store, tmp_path / "out")
    assert refused.value.reason == ("TornCheckpoint" if kept else "CheckpointDropped")
    assert not (tmp_path / "out").exists()


def test_what_else_is_wrong_with_an_export_is_said_though_its_checkpoint_is_dropped_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = checkpoint(tmp_path / "run", drawn(MODEL), MODEL)

    def dropping(store: Store, shard: Shard) -> dict[str, Tensor]:
        store.delete(manifest_key(3))
        raise Refused("AccessDenied", "shards may not be read")

    monkeypatch.setattr(save_load, "read_shard", dropping)
    with pytest.raises(Refused, match="shards may not be read") as refused:
        export(store, tmp_path / "out")
    assert refused.value.reason == "AccessDenied"


def test_an_export_never_mixes_with_what_a_folder_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = checkpoint(tmp_path / "run", drawn(MODEL), MODEL).uri
    (tmp_path / "empty").mkdir()
    assert main([uri, str(tmp_path / "empty"), "--dtype", "bf16", "--file-gb", "0.000008"]) == 0
    assert main([uri, str(tmp_path / "empty")]) == 2
    assert main([uri, str(tmp_path / "one"), "--file-gb", "inf"]) == 0
    assert [path.name for path in (tmp_path / "one").glob("*.safetensors*")] == ["model.safetensors"]
    assert "OutputExists" in capsys.readouterr().err
    assert json.loads((tmp_path / "empty" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert torch.isfinite(their_logits(tmp_path / "empty")).all()


@pytest.mark.parametrize("name", ["out", "weights.safetensors"])
@pytest.mark.parametrize("there", [True, False], ids=["a link to an output", "a link to nothing yet"])
def test_an_export_to_a_link_is_written_behind_it(tmp_path: Path, name: str, there: bool) -> None:
    behind, link = tmp_path / "disk" / name, tmp_path / name
    behind.parent.mkdir()
    link.symlink_to(behind)
    if there:
        behind.mkdir() if name == "out" else behind.write_bytes(b"old")
    export(checkpoint(tmp_path / "run", drawn(MODEL), MODEL), link)
    weights = behind / "model.safetensors" if name == "out" else behind
    assert link.is_symlink() and safetensors.torch.load_file(weights)
    assert [path.name for path in behind.parent.iterdir()] == [name]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_never_replaced_by_one_of_weights(tmp_path: Path, make: Callable[[Path], None]) -> None:
    place = tmp_path / "weights.safetensors"
    make(place)
    before = place.stat().st_mode
    with pytest.raises(Refused, match=r"weights\.safetensors' exists and is no file; name another, or remove it"):
        export(checkpoint(tmp_path / "run", drawn(MODEL), MODEL), place)
    assert place.stat().st_mode == before


def test_a_model_of_ones_own_is_exported_as_weights_alone(tmp_path: Path) -> None:
    weights = {"wte.weight": torch.randn(64, 8), "ln_f.bias": torch.randn(8)}
    model = replace(MODEL, custom=CustomModel(path="gpt2:GPT2"))
    store = checkpoint(tmp_path / "run", weights, model)
    with pytest.raises(Refused, match=r"is of a model of your own, .*OUTPUT that ends in \.safetensors"):
        export(store, tmp_path / "out")
    export(store, tmp_path / "out.safetensors")
    found = safetensors.torch.load_file(tmp_path / "out.safetensors")
    assert all(torch.equal(found[name], weights[name]) for name in weights)


@pytest.mark.parametrize(("embedding", "head", "rows"), [(100, 101, 101), (101, 100, 101), (10, 64, 65), (128, 9, 128)])
def test_a_checkpoint_that_names_no_model_has_the_rows_that_hold_values(
    tmp_path: Path, embedding: int, head: int, rows: int
) -> None:
    """As earlier releases saved it: its weights may have been imported. Rounding up adds fewer than 64 rows."""
    weights = drawn(MODEL, 128)
    weights[EMBEDDING][embedding:] = 0
    weights[HEAD][head:] = 0
    store = checkpoint(tmp_path / "run", weights, None)
    with pytest.raises(Refused, match="does not say its model's shape"):
        export(store, tmp_path / "out")
    export(store, tmp_path / "out.safetensors")
    found = safetensors.torch.load_file(tmp_path / "out.safetensors")
    assert [len(found[name]) for name in (EMBEDDING, HEAD)] == [rows, rows]
    assert all(torch.equal(values, weights[name][: len(values)]) for name, values in found.items())


def test_a_checkpoint_that_lacks_a_shard_is_refused_by_the_tensors_name(tmp_path: Path) -> None:
    store = checkpoint(tmp_path / "run", drawn(MODEL), MODEL)
    manifest = save_load.read_manifest(store, manifest_key(3))
    store.put(manifest_key(3), msgspec.json.encode(replace(manifest, shards=manifest.shards[1:])))
    with pytest.raises(Refused, match=r"no shard holds all of .*embed_tokens"):
        export(store, tmp_path / "out")
    assert not (tmp_path / "out").exists()
