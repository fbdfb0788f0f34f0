"""TokenBin: pairs of .bin and .idx as Megatron-LM writes them, and broken pairs."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Sequence as Seq
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coxswain.config import MixConfig
from coxswain.errors import Refused
from coxswain.membership.values import Sequence
from coxswain_data.formats.object_reader import ObjectReader, Sizes
from coxswain_data.formats.tokenbin import TokenBinObject
from coxswain_data.local import LocalData
from coxswain_data.source import Source, open_source
from coxswain_link.spool import Spool
from coxswain_link.store import ObjectChanged, ObjectInfo, open_store
from tests.unit.test_data_formats import source as source_of

DOCUMENTS = [[1, 2, 3], [4] * 300, [], [7, 256], [8]]
EOS = 256  # of the tokenizer `bytes`
CODES = {"<u1": 1, "<i2": 3, "<i4": 4, "<i8": 5, "<u2": 8}


def index_bytes(sizes: Seq[int], bounds: Seq[int], type_: str = "<u2", version: int = 1) -> bytes:
    """As `IndexedDatasetBuilder.finalize` of Megatron-LM writes it."""
    starts = np.concatenate([[0], np.cumsum(sizes[:-1])]) * np.dtype(type_).itemsize
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", version, CODES[type_], len(sizes), len(bounds))
    return head + np.array(sizes, "<i4").tobytes() + starts.astype("<i8").tobytes() + np.array(bounds, "<i8").tobytes()


def write(folder: Path, documents: Seq[Seq[int]], type_: str = "<u2", name: str = "x") -> Source:
    """Each document is one sequence, as `preprocess_data.py` makes them."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.bin").write_bytes(np.array([t for d in documents for t in d], type_).tobytes())
    index = index_bytes([len(d) for d in documents], range(len(documents) + 1), type_)
    (folder / f"{name}.idx").write_bytes(index)
    return source_of(folder, "TokenBin")


def read(mine: Source) -> list[list[int]]:
    return [list(s.text) for b in mine.blocks() for s in mine.read(b).samples()]


def local(tmp_path: Path, documents: Seq[Seq[int]] = DOCUMENTS) -> LocalData:
    store = open_store((tmp_path / "runs").as_uri(), create=True)
    return LocalData(MixConfig(name="m", seed=1, sources=(write(tmp_path / "c", documents).config,)), store)


def tokens(data: LocalData, index: int, length: int) -> list[int]:
    return data.tokens(Sequence("mine", 0, index, 0, length, length)).tolist()


@pytest.mark.parametrize("type_", ["<i2", "<i4", "<i8", "<u2"])
def test_documents_are_read_whatever_the_type_of_their_ids(tmp_path, type_):
    assert read(write(tmp_path / "c", DOCUMENTS, type_)) == DOCUMENTS


@pytest.mark.parametrize("range_", [2, 10, 600, 1 << 20])
def test_a_block_has_the_documents_that_begin_in_its_range(tmp_path, range_):
    mine = open_source(write(tmp_path / "c", DOCUMENTS).config, sizes=Sizes(tokenbin_block=range_))
    full = [d for d in DOCUMENTS if d]
    assert [d for d in read(mine) if d] == full
    found = [mine.read(b).text(s.at) for b in mine.blocks() for s in mine.read(b).samples() if len(s.text)]
    assert [list(ids) for ids in found] == full
    assert len(mine.blocks()) == {2: 4, 10: 3, 600: 2, 1 << 20: 1}[range_]


def test_a_last_document_that_is_longer_than_a_range_has_no_empty_block_behind_it(tmp_path):
    mine = open_source(write(tmp_path / "c", [[1], [2] * 9]).config, sizes=Sizes(tokenbin_block=4))
    assert [b.size for b in mine.blocks()] == [20]


class Memory:
    """A store of one pair."""

    uri = "memory://"

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = objects

    def head(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self._objects[key]), "")

    def get(self, key: str) -> bytes:
        return self._objects[key]

    def get_range(self, key: str, start: int, stop: int, etag: str) -> bytes:
        return self._objects[key][start:stop]


class Versioned(Memory):
    """A store whose objects have the etag `now`: it reads by no other one, as S3 does."""

    def head(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, super().head(key).size, "now")

    def get_range(self, key: str, start: int, stop: int, etag: str) -> bytes:
        if etag != "now":
            raise ObjectChanged(key)
        return super().get_range(key, start, stop, etag)


def test_an_index_file_that_is_replaced_since_its_pair_was_listed_is_not_taken_for_the_listed_one(tmp_path):
    """The former index file's documents may end elsewhere in the same tokens."""
    store: Any = Versioned({"x.bin": bytes(4), "x.idx": index_bytes([1, 1], range(3))})

    def opened(etags: str) -> TokenBinObject:
        def changed(path: str, how: str) -> Refused:
            return Refused("SourceChanged", f"{path} {how}")

        return TokenBinObject(ObjectReader(store, ObjectInfo("x.bin", 4, etags), Spool(tmp_path), changed, Sizes()), "")

    assert [e.size for e in opened("now now").extents()] == [4]
    with pytest.raises(Refused, match=r"x\.idx was replaced since it was listed") as caught:
        opened("now earlier")
    assert caught.value.reason == "SourceChanged"


@given(lengths=st.lists(st.integers(0, 9), max_size=12), range_=st.integers(1, 30), cuts=st.sets(st.integers(0, 11)))
def test_any_cut_into_blocks_and_sequences_gives_each_document_once(lengths, range_, cuts):
    data = np.arange(sum(lengths), dtype="<u2")
    bounds = sorted({0, len(lengths), *(c for c in cuts if c <= len(lengths))})
    store = Memory({"x.bin": data.tobytes(), "x.idx": index_bytes(lengths, bounds)})
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(int)[bounds]
    changed = partial(Refused, "SourceChanged")
    opened = TokenBinObject(
        ObjectReader(store, store.head("x.bin"), Spool(), changed, Sizes(tokenbin_block=range_)),
        "",  # type: ignore[arg-type]
    )
    blocks = [opened.read(e) for e in opened.extents()]
    found = [(b, s) for b in blocks for s in b.samples() if len(s.text)]
    expected = [data[a:b].tolist() for a, b in pairwise(edges) if a < b]
    assert [s.text.tolist() for _, s in found] == expected
    assert [b.text(s.at).tolist() for b, s in found] == expected


def test_a_pair_of_more_tokens_than_32_bits_count_is_cut_where_its_documents_are(tmp_path):
    store = Memory({"x.idx": index_bytes([1 << 30] * 3, range(4))})
    info = ObjectInfo("x.bin", 6 << 30, "")
    reader = ObjectReader(store, info, Spool(tmp_path), partial(Refused, "SourceChanged"), Sizes())  # type: ignore[arg-type]
    assert [e.offset for e in TokenBinObject(reader, "").extents()] == [0, 2 << 30, 4 << 30]


def test_a_block_takes_memory_by_its_own_documents_and_not_by_the_many_of_its_pair(tmp_path):
    many = 1 << 20
    store = Memory({"x.bin": bytes(2 * many), "x.idx": index_bytes([1] * many, range(many + 1))})
    changed = partial(Refused, "SourceChanged")
    opened = TokenBinObject(
        ObjectReader(store, store.head("x.bin"), Spool(tmp_path), changed, Sizes(tokenbin_block=1 << 10)),
        "",  # type: ignore[arg-type]
    )
    extents = opened.extents()
    tracemalloc.start()
    try:
        assert len(list(opened.read(extents[99]).samples())) == 1 << 9
        assert tracemalloc.get_traced_memory()[1] < many // 4  # bytes: a mask of all documents has one for each
    finally:
        tracemalloc.stop()


def test_a_document_gets_an_end_of_text_unless_it_has_one(tmp_path):
    data = local(tmp_path)
    assert [b.tokens for b in data.blocks("mine")] == [4 + 301 + 2 + 2]
    assert tokens(data, 0, 4) == [1, 2, 3, EOS]
    assert tokens(data, 2, 2) == [7, EOS]
    assert tokens(data, 3, 2) == [8, EOS]


@pytest.mark.parametrize("foreign", [257, 50_256])
def test_ids_that_the_tokenizer_does_not_have_are_refused_by_name_and_not_trained_on(tmp_path, foreign):
    with pytest.raises(
        Refused, match=rf"x\.bin holds token id {foreign}, .* 0 to 256.*tokens were made with"
    ) as caught:
        local(tmp_path, [[1], [foreign]]).blocks("mine")
    assert caught.value.reason == "TokenizerMismatch"


def test_negative_ids_are_refused_as_foreign(tmp_path):
    store = open_store((tmp_path / "runs").as_uri(), create=True)
    mine = write(tmp_path / "c", [[1, -2]], "<i4").config
    with pytest.raises(Refused, match="holds token id -2"):
        LocalData(MixConfig(name="m", seed=1, sources=(mine,)), store).blocks("mine")


@pytest.mark.parametrize("include", ["**/*", "**/*.bin"])
def test_index_files_are_no_data_of_their_own(tmp_path, include):
    mine = write(tmp_path / "c", DOCUMENTS)
    assert [b.path for b in open_source(msgspec.structs.replace(mine.config, include=include)).blocks()] == ["x.bin"]


def test_an_include_that_matches_no_bin_is_refused_as_empty_with_what_is_needed(tmp_path):
    mine = write(tmp_path / "c", DOCUMENTS)
    with pytest.raises(Refused, match=r"none with \.bin matches") as caught:
        open_source(msgspec.structs.replace(mine.config, include="*.idx")).blocks()
    assert caught.value.reason == "SourceEmpty"


def broken(folder: Path, harm: str) -> None:
    """One way in which a pair is broken."""
    head = bytearray((folder / "x.idx").read_bytes())
    sizes = [len(d) for d in DOCUMENTS]
    (folder / "x.idx").write_bytes(
        {
            "another file": b"not an index" * 9, "empty": b"", "truncated": head[:-3], "head only": head[:20],
            "version 2": index_bytes(sizes, range(6), version=2), "floats": head[:17] + b"\x06" + head[18:],
            "gaps": index_bytes(sizes, range(6))[:54] + b"\1" + index_bytes(sizes, range(6))[55:],
            "other bounds": index_bytes(sizes, [0, 3]), "falling bounds": index_bytes(sizes, [0, 4, 2, 5]),
            "no bounds": index_bytes(sizes, []), "late bounds": index_bytes(sizes, [1, 5]),
            "negative": index_bytes([*sizes, -1, 1], range(8)),
            "shorter": index_bytes(sizes[:-1], range(5)), "longer": index_bytes([*sizes, 5], range(7)),
            "more than any memory": head[:18] + b"\xff" * 16 + head[34:],
        }[harm]
    )  # fmt: skip


@pytest.mark.parametrize(
    "harm",
    ["another file", "empty", "truncated", "head only", "version 2", "floats", "gaps", "other bounds", "falling bounds",
     "no bounds", "late bounds", "negative", "shorter", "longer", "more than any memory"],
)  # fmt: skip
def test_a_broken_index_file_is_refused_by_name(tmp_path, harm):
    mine = write(tmp_path / "c", DOCUMENTS)
    broken(tmp_path / "c", harm)
    with pytest.raises(Refused, match=r"x\.idx is not an index of a \.bin .*write the pair again") as caught:
        mine.blocks()
    assert caught.value.reason == "ObjectUnreadable"


@pytest.mark.parametrize(
    ("most", "says"),
    [
        ("document", r"x\.bin: the document at byte 6 is larger than"),
        ("tokenbin_index", r"x\.idx is larger than .* several pairs"),
    ],
)
def test_a_document_and_an_index_file_have_a_limit(tmp_path, most, says):
    config = write(tmp_path / "c", DOCUMENTS).config
    size = 600 if most == "document" else (tmp_path / "c" / "x.idx").stat().st_size
    assert len([d for d in read(open_source(config, sizes=Sizes(tokenbin_block=2, **{most: size}))) if d]) == 4
    with pytest.raises(Refused, match=says) as caught:
        read(open_source(config, sizes=Sizes(tokenbin_block=2, **{most: size - 1})))
    assert caught.value.reason == "ObjectTooLarge"


def test_a_truncated_bin_is_refused_with_both_sizes(tmp_path):
    mine = write(tmp_path / "c", DOCUMENTS)
    os.truncate(tmp_path / "c" / "x.bin", 100)
    with pytest.raises(Refused, match=r"describes 612 bytes, and x\.bin has 100"):
        mine.blocks()


def test_a_bin_without_its_index_file_is_refused_by_the_missing_name(tmp_path):
    mine = write(tmp_path / "c", DOCUMENTS)
    (tmp_path / "c" / "x.idx").unlink()
    with pytest.raises(Refused, match=r"x\.idx is missing; format TokenBin needs it"):
        mine.blocks()


def test_an_index_file_without_its_bin_is_refused_by_the_missing_name_unless_include_leaves_it_out(tmp_path):
    mine = write(tmp_path / "c", DOCUMENTS)
    write(tmp_path / "c", DOCUMENTS, name="y")
    (tmp_path / "c" / "y.bin").unlink()
    with pytest.raises(Refused, match=r"y\.bin is missing beside its \.idx; upload it, or leave it out") as caught:
        mine.blocks()
    assert caught.value.reason == "ObjectUnreadable"
    assert open_source(msgspec.structs.replace(mine.config, include="x*")).blocks()


@pytest.mark.parametrize("harm", ["rewritten", "gone"])
@pytest.mark.parametrize("name", ["x.bin", "x.idx"])
def test_a_pair_of_which_one_changes_under_a_run_is_refused(tmp_path, name, harm):
    data = local(tmp_path)
    data.blocks("mine")
    path = tmp_path / "c" / name
    content = path.read_bytes()
    path.unlink()
    if harm == "rewritten":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(Refused, match=r"x\.bin was indexed") as caught:
        tokens(data, 0, 4)
    assert caught.value.reason == "SourceChanged"
