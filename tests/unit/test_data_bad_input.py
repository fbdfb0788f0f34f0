"""Replaced tokenizers, empty sources, and documents beyond every limit."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
from pathlib import Path

import pytest
import zstandard
from msgspec.structs import replace
from tokenizers import Tokenizer, models, pre_tokenizers

from coxswain.config import MixConfig, SourceConfig, TokenizerConfig
from coxswain.errors import Refused
from coxswain.membership.values import Sequence
from coxswain.planlog import LoaderShare
from coxswain.wire import Indexed
from coxswain_coordinator.index.merge import merge
from coxswain_data.formats.object_reader import Sizes
from coxswain_data.indexer import index_share
from coxswain_data.local import LocalData
from coxswain_data.source import open_source
from coxswain_data.tokenizer import BytesTokenizer, open_tokenizer
from coxswain_link.store import Store, open_store

FORMATS = {"Parquet": "a.parquet", "Jsonl": "a.jsonl", "Text": "a.txt", "Tar": "a.tar", "TokenBin": "a.bin"}
SMALL = Sizes(document=1 << 20)


def config(folder: Path, format_: str = "Jsonl", **fields: object) -> SourceConfig:
    plain = SourceConfig(
        name="mine", source="mine", uri=folder.as_uri(), format=format_, include="**", text_field="text",
        tokenizer=TokenizerConfig(kind="bytes"), weight=1,
    )  # fmt: skip
    return replace(plain, **fields)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store((tmp_path / "runs").as_uri(), create=True)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus").mkdir()
    return tmp_path / "corpus"


def refusal(source: SourceConfig, store: Store) -> str:
    with pytest.raises(Refused) as caught:
        index_share(open_source(source, sizes=SMALL), BytesTokenizer(), store, LoaderShare("loader-0", "mine", 0, 1))
    return f"{caught.value.reason}: {caught.value.message}"


# --- tokenizers -----------------------------------------------------------------------------------------------------


def write_tokenizer(path: Path, *words: str) -> TokenizerConfig:
    vocabulary = {word: i for i, word in enumerate(("</s>", "?", *words))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(["</s>"])
    made.save(str(path))
    return TokenizerConfig(kind="file", uri=path.as_uri())


def read_first(source: SourceConfig, store: Store, blocks: list) -> None:
    known = {"mine": tuple(blocks)}  # a restarted loader gets them from the coordinator
    data = LocalData(MixConfig(name="m", seed=1, sources=(source,)), store, known=known)
    data.tokens(Sequence("mine", 0, 0, 0, 3, 3))


def test_a_tokenizer_that_is_swapped_under_a_run_is_refused_though_lengths_stay_the_same(corpus, store, tmp_path):
    (corpus / "a.jsonl").write_text('{"text": "one two"}\n')
    source = config(corpus, tokenizer=write_tokenizer(tmp_path / "tokenizer.json", "one", "two"))
    blocks = LocalData(MixConfig(name="m", seed=1, sources=(source,)), store).blocks("mine")
    read_first(source, store, list(blocks))
    write_tokenizer(tmp_path / "tokenizer.json", "two", "one")
    with pytest.raises(
        Refused, match="source 'mine' was indexed with another tokenizer than its present one"
    ) as caught:
        read_first(source, store, list(blocks))
    assert caught.value.reason == "TokenizerChanged"
    assert "restore the former tokenizer, or start a new run with a fresh checkpoint.uri" in caught.value.message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, r"tokenizer\.file\.uri '.*/t\.json' does not exist; correct the uri, or write the file again"),
        (b"", r"t\.json' is not a tokenizer\.json of Hugging Face's tokenizers library \(.*\); correct the uri"),
        (b'{"model": {}}', r"t\.json' is not a tokenizer\.json"),
        (b"\x00\xff" * 40, r"t\.json' is not a tokenizer\.json"),
    ],
    ids=["missing", "empty", "cut", "binary"],
)
def test_a_tokenizer_that_cannot_be_read_is_refused_with_the_way_out(tmp_path, content, says):
    if content is not None:
        (tmp_path / "t.json").write_bytes(content)
    found = TokenizerConfig(kind="file", uri=(tmp_path / "t.json").as_uri())
    with pytest.raises(Refused, match=says) as caught:
        open_tokenizer(found, config(tmp_path).endpoint, None)
    assert caught.value.reason == "TokenizerUnusable"


def test_loaders_that_have_two_tokenizers_are_refused_by_their_sources():
    parts = [Indexed(LoaderShare(f"loader-{i}", name, 0, 1), (), name, 300) for i, name in enumerate(("code", "docs"))]
    with pytest.raises(
        Refused, match=r"sources code and docs have different tokenizers; .*give them the same spec.tokenizer"
    ):
        merge(MixConfig(name="m", seed=1, sources=()), parts)


# --- nothing to read ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", FORMATS)
def test_a_source_of_empty_files_is_refused_by_name_whatever_the_format(corpus, store, format_):
    (corpus / FORMATS[format_]).write_bytes(b"")
    (corpus / "a.idx").write_bytes(b"") if format_ == "TokenBin" else None
    said = refusal(config(corpus, format_), store)
    assert said.startswith(("SourceEmpty: source 'mine' at file://", f"ObjectUnreadable: {corpus.as_uri()}/a."))
    assert "check uri" in said or "correct" in said or "exclude it with `include`" in said


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_a_compressed_file_without_a_byte_is_refused_by_name(corpus, store, name):
    (corpus / name).write_bytes(b"")
    assert f"ObjectUnreadable: {corpus.as_uri()}/{name} cannot be unpacked (it is empty" in refusal(
        config(corpus), store
    )


def test_a_corpus_of_documents_without_text_is_refused_with_what_to_check(corpus, store):
    (corpus / "a.jsonl").write_text('{"text": ""}\n' * 5)
    said = refusal(config(corpus), store)
    assert said.endswith("has no readable sample that is not empty; check uri, include and textField")


def test_a_mix_whose_source_is_empty_in_all_shares_is_refused_by_its_name():
    source = replace(config(Path("/corpus")), name="docs")
    parts = [Indexed(LoaderShare(f"loader-{i}", "docs", i, 2), (), "bytes", 257) for i in range(2)]
    with pytest.raises(Refused, match="sources without a readable sample: docs; check uri, include and textField"):
        merge(MixConfig(name="m", seed=1, sources=(source,)), parts)


@pytest.mark.parametrize("format_", ["Jsonl", "Text", "Tar"])
@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a", gzip.compress),
        ("a.GZ", gzip.compress),
        ("a.zstd", zstandard.ZstdCompressor().compress),
        ("a.bz2", bz2.compress),
        ("a.xz", lzma.compress),
        ("a.gz", lambda data: gzip.compress(gzip.compress(data))),
        ("a.zst", lambda data: zstandard.ZstdCompressor().compress(gzip.compress(data))),
    ],
    ids=["no ending", "capitals", "another ending", "bzip2", "xz", "gzip twice", "gzip in zstd"],
)
def test_a_packed_file_whose_name_does_not_say_so_is_no_few_samples_that_do_not_decode(
    corpus, store, format_, name, pack
):
    """A source that allows some rejected samples lost all documents of such a file: its packed bytes have few line breaks."""
    (corpus / name).write_bytes(pack(b"".join(b'{"text": "%d"}\n' % number for number in range(1000))))
    said = refusal(replace(config(corpus, format_), max_rejected=500), store)
    assert said.startswith(f"ObjectUnreadable: {corpus.as_uri()}/{name} holds what ")
    assert said.endswith("rename it, unpack it, or exclude it with `include`")


# --- cut off, and too long ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gz", "zst"])
@pytest.mark.parametrize("left", [1, 5, 20, 200])
def test_a_compressed_file_that_is_cut_anywhere_loses_no_documents_unseen(corpus, store, pack, left):
    name = f"a.jsonl.{'gz' if pack is gzip.compress else 'zst'}"
    lines = "".join(json.dumps({"text": f"{i * 7919} words"}) + "\n" for i in range(400))
    (corpus / name).write_bytes(pack(lines.encode())[:-left])
    said = refusal(config(corpus), store)
    assert f"{name} cannot be unpacked (" in said
    assert "upload it again or exclude it with `include`" in said


def test_a_text_file_beyond_the_limit_is_refused_before_it_is_read(corpus, store):
    (corpus / "a.txt").write_bytes(b"x" * ((1 << 20) + 1))
    said = refusal(config(corpus, "Text"), store)
    assert "a.txt holds more than 1 MiB and can only be read whole; split it, or store it as Parquet" in said


def test_a_member_of_an_archive_beyond_the_limit_is_refused_by_its_name(corpus, store):
    with tarfile.open(corpus / "a.tar", "w") as archive:
        member = tarfile.TarInfo("book.text")
        member.size = (1 << 20) + 1
        archive.addfile(member, io.BytesIO(b"x" * member.size))
    said = refusal(config(corpus, "Tar"), store)
    assert "a.tar: book.text is larger than 1 MiB; split the document" in said
