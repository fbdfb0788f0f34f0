"""How much is read of a source for what is served of it, and that it is the content that was listed."""

from __future__ import annotations

import gzip
import io
import json
import resource
import tarfile
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from msgspec.structs import replace
from obstore.store import LocalStore

from coxswain.config import MixConfig, SourceConfig
from coxswain.errors import Refused
from coxswain.index import decode, encode, object_key
from coxswain.membership.order import WINDOW, PassOrder
from coxswain.membership.values import Sequence
from coxswain_data.formats.object_reader import Sizes
from coxswain_data.local import LocalData
from coxswain_data.samples import TOKEN_BYTES
from coxswain_data.source import Source, open_source
from coxswain_data.tokenizer import BytesTokenizer
from coxswain_link.spool import Spool
from coxswain_link.store import ObjectChanged, Store, StoreUnavailable, open_store
from tests.unit.test_data_formats import jsonl_bytes
from tests.unit.test_data_formats import source as source_of

MIB = 1 << 20


class CountingStore(Store):
    """Counts the bytes that are read of a folder."""

    def __init__(self, uri: str) -> None:
        super().__init__(LocalStore(prefix=Path(uri.removeprefix("file://"))), uri)
        self.read = 0

    def get_range(self, key: str, start: int, stop: int, etag: str = "") -> bytes:
        data = super().get_range(key, start, stop, etag)
        self.read += len(data)
        return data


class Counted:
    """Opens sources and adds up what is read of them."""

    def __init__(self) -> None:
        self.stores: list[CountingStore] = []

    def open(self, config: SourceConfig, _: Path | None, spool: Spool) -> Source:
        self.stores.append(CountingStore(config.uri))
        return Source(config, self.stores[-1], spool, Sizes())

    @property
    def read(self) -> int:
        return sum(store.read for store in self.stores)


def documents(count: int) -> list[str]:
    return [f"{i:07d} " + "x" * (MIB - 8) for i in range(count)]


def write_jsonl(folder: Path, mebibytes: int) -> None:
    (folder / "a.jsonl").write_bytes(jsonl_bytes(*documents(mebibytes)))


def write_parquet(folder: Path, mebibytes: int) -> None:
    table = pa.table({"text": documents(mebibytes), "unused": [b"y" * 999] * mebibytes})
    pq.write_table(
        table, folder / "a.parquet", row_group_size=mebibytes // WINDOW, compression=None, use_dictionary=False
    )


def write_gzip(folder: Path, mebibytes: int) -> None:
    for part in range(WINDOW):
        (folder / f"{part}.jsonl.gz").write_bytes(gzip.compress(jsonl_bytes(*documents(mebibytes // WINDOW)), 0))


def corpus(tmp_path: Path, sources: int, format_: str, write: object, mebibytes: int) -> MixConfig:
    made = []
    for number in range(sources):
        folder = tmp_path / f"s{number}"
        folder.mkdir()
        write(folder, mebibytes)  # type: ignore[operator]
        config = source_of(folder, format_).config
        made.append(SourceConfig(**{f: getattr(config, f) for f in config.__struct_fields__} | {"name": f"s{number}"}))
    return MixConfig(name="m", seed=1, sources=tuple(made))


def drawn(data: LocalData, mix: MixConfig) -> Iterator[Sequence]:
    """One pass over every source, the sources in turn."""
    views = data.views()
    orders = {s.name: PassOrder(mix.seed, views[s.name], 0) for s in mix.sources}
    for n in range(max(view.samples for view in views.values())):
        for name, order in orders.items():
            if n < views[name].samples:
                index, length = order.at(n)
                yield Sequence(name, 0, index, 0, length, length)


CORPORA = [
    pytest.param(1, "Parquet", write_parquet, 192, id="Parquet, row groups of 24 MiB"),
    pytest.param(1, "Parquet", write_parquet, 1024, id="Parquet, row groups of 128 MiB", marks=pytest.mark.slow),
    pytest.param(1, "Jsonl", write_gzip, 192, id="packed Jsonl of 24 MiB", marks=pytest.mark.slow),
    pytest.param(64, "Jsonl", write_jsonl, 16, id="64 sources of Jsonl", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("sources", "format_", "write", "mebibytes"), CORPORA)
def test_a_block_is_read_once_however_its_window_is_drawn(tmp_path, sources, format_, write, mebibytes):
    mix, store = (
        corpus(tmp_path, sources, format_, write, mebibytes),
        open_store((tmp_path / "run").as_uri(), create=True),
    )
    indexed = LocalData(mix, store)
    known = {s.name: indexed.blocks(s.name) for s in mix.sources}
    counted = Counted()
    data = LocalData(mix, store, known=known, open_one=counted.open)
    served = sum(len(data.tokens(sequence)) for sequence in drawn(data, mix))
    assert served > sources * mebibytes * (MIB - 100)
    assert counted.read <= 1.2 * served  # Jsonl reads on to the end of a line


@pytest.mark.parametrize(
    ("end", "pack", "mebibytes"), [("gz", gzip.compress, 16), ("zst", zstandard.ZstdCompressor().compress, 48)]
)
def test_a_packed_object_is_unpacked_piece_by_piece(tmp_path, end, pack, mebibytes):
    (tmp_path / f"a.jsonl.{end}").write_bytes(pack(jsonl_bytes(*documents(64))))
    mine = source_of(tmp_path)
    (entry,) = mine.blocks()
    tracemalloc.start()
    block = mine.read(entry)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert block.nbytes > 64 * MIB
    assert peak < mebibytes * MIB


# --- the listed content ---------------------------------------------------------------------------------------------


def tar_bytes(text: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for number in range(3):
            entry = tarfile.TarInfo(f"{number}.text")
            entry.size = len(text)
            file.addfile(entry, io.BytesIO(text))
    return out.getvalue()


def test_an_archive_that_is_replaced_while_it_is_open_is_refused_by_name(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes(b"one" * MIB))
    mine = source_of(tmp_path, "Tar", sizes=Sizes(tar_whole=0))
    block = mine.read(mine.blocks()[0])
    places = [sample.at for sample in block.samples()]
    other = tmp_path / "other"
    other.write_bytes(tar_bytes(b"two" * MIB))
    other.rename(path)
    with pytest.raises(Refused, match=r"a\.tar was replaced since it was listed") as caught:
        [block.text(at) for at in places]
    assert caught.value.reason == "SourceChanged"


def test_an_archive_that_is_deleted_while_it_is_open_is_refused_by_name(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_bytes(b"one" * MIB))
    mine = source_of(tmp_path, "Tar", sizes=Sizes(tar_whole=0))
    block = mine.read(mine.blocks()[0])
    (tmp_path / "a.tar").unlink()
    with pytest.raises(Refused, match=r"a\.tar was listed and is gone") as caught:
        list(block.samples())
    assert caught.value.reason == "SourceChanged"


# --- Jsonl as Python writes it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_lacks_in_an_unused_field_does_not_reject_the_line(tmp_path, number):
    (tmp_path / "a.jsonl").write_text(f'{{"score": {number}, "text": "good"}}\n')
    mine = source_of(tmp_path)
    assert [s.text for s in mine.read(mine.blocks()[0]).samples()] == ["good"]


@pytest.mark.parametrize(
    "line",
    ['{"text": NaN}', '{"text": "cut NaN', '[NaN, "text"]', '{"a": NaN}', '{"a": NaN, "text": "\\ud800"}', "NaN"],
)
def test_such_a_number_makes_no_other_line_readable(tmp_path, line):
    (tmp_path / "a.jsonl").write_text(line + "\n" + json.dumps({"text": "b"}) + "\n")
    mine = source_of(tmp_path)
    assert [s.text for s in mine.read(mine.blocks()[0]).samples()] == [None, "b"]


# --- the spool ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 16 << 10, (16 << 10) + 1, 3 * MIB])
def test_held_content_is_what_was_given_and_leaves_no_name_on_disk(tmp_path, size):
    parts = [bytes([i % 251]) * (size // 7) for i in range(7)] + [b"e" * (size % 7)]
    held = Spool(tmp_path).hold(parts)
    assert held[:] == b"".join(parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", [1000, MIB], ids=["buffered", "not buffered"])
def test_a_full_disk_is_named_and_may_pass(tmp_path, part):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
    try:
        with pytest.raises(StoreUnavailable, match=f"{tmp_path} has no room for a block of data .*make room there"):
            Spool(tmp_path).hold([b"x" * part] * (3 * MIB // part))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_weak_etag_which_no_condition_can_name_is_not_asked_for(tmp_path):
    store = open_store(tmp_path.as_uri())
    (tmp_path / "a").write_bytes(b"content")
    assert store.get_range("a", 1, 4, 'W/"weak"') == b"ont"
    with pytest.raises(ObjectChanged):
        store.get_range("a", 1, 4, '"another"')


def test_blocks_in_use_keep_fewer_files_open_than_the_process_may_have(tmp_path):
    """Each block is a mapping of a file, and there are more blocks than files may be opened."""
    (tmp_path / "s").mkdir()
    used = len(list(Path("/proc/self/fd").iterdir()))
    texts = [f"{i:04d} " + "x" * 20_000 for i in range(used + 60)]
    (tmp_path / "s/a.jsonl").write_bytes(jsonl_bytes(*texts))
    mix = MixConfig(name="m", seed=1, sources=(source_of(tmp_path / "s").config,))
    open_one = partial(open_source, sizes=Sizes(jsonl_block=20_000))
    known = {
        "mine": LocalData(mix, open_store((tmp_path / "run").as_uri(), create=True), open_one=open_one).blocks("mine")
    }
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * used + 40, before[1]))
    try:
        data = LocalData(mix, open_store((tmp_path / "run").as_uri()), known=known, open_one=open_one)
        read = [data.tokens(Sequence("mine", 0, i, 0, 2, len(text) + 1)) for i, text in enumerate(texts)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [bytes(tokens.tolist()).decode() for tokens in read] == [text[:2] for text in texts]


def test_two_long_documents_in_turn_are_tokenised_once_each(tmp_path, monkeypatch):
    """Their pieces are in step after step: tokenised again for each, no request for both would end within its time."""
    size = TOKEN_BYTES // 8 + 1  # characters, of four bytes each as tokens: both documents take more than there is
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a.jsonl").write_bytes(jsonl_bytes("x" * size, "y" * size))
    mix = MixConfig(name="m", seed=1, sources=(source_of(tmp_path / "c").config,))
    store = open_store((tmp_path / "run").as_uri(), create=True)
    data, encoded, encode = LocalData(mix, store), [], BytesTokenizer.encode
    data.blocks("mine")
    monkeypatch.setattr(BytesTokenizer, "encode", lambda self, text: encoded.append(text[0]) or encode(self, text))
    pieces = [(index, start) for start in range(0, size - 5, size // 8) for index in (0, 1)]
    got = [data.tokens(Sequence("mine", 0, index, start, start + 5, size + 1)).tolist() for index, start in pieces]
    assert got == [[ord("xy"[index])] * 5 for index, _ in pieces]
    assert encoded == ["x", "y"]


class ShortStore(Store):
    """Gives a byte less than it is asked for."""

    def get_range(self, key: str, start: int, stop: int, etag: str = "") -> bytes:
        return super().get_range(key, start, stop, etag)[:-1]


def test_an_object_that_gives_fewer_bytes_than_were_listed_is_refused_and_not_read_in_part(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes("one", "two"))
    config = source_of(tmp_path).config
    cut = Source(config, ShortStore(LocalStore(prefix=tmp_path), config.uri), Spool(), Sizes())
    with pytest.raises(Refused, match=r"a\.jsonl was listed with 32 bytes and ends at byte 31"):
        [cut.read(block) for block in cut.blocks()]


@pytest.mark.parametrize("count", [1, 3])
def test_an_index_of_fewer_or_more_documents_than_its_block_was_indexed_with_is_refused(tmp_path, count):
    """One of a single document would give its place to all of them."""
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a.jsonl").write_bytes(jsonl_bytes("one", "two"))
    mix = MixConfig(name="m", seed=1, sources=(source_of(tmp_path / "c").config,))
    store = open_store((tmp_path / "run").as_uri(), create=True)
    (entry,) = blocks = LocalData(mix, store).blocks("mine")
    key = object_key(entry.key)
    whole = decode(store.get(key))
    other = replace(whole, at=np.resize(whole.at, count), lengths=np.resize(whole.lengths, count))
    store.put(key, encode(other))
    with pytest.raises(Refused, match=f"block 0 has {count} samples and was indexed with 2") as caught:
        LocalData(mix, store, known={"mine": blocks}).tokens(Sequence("mine", 0, 1, 0, 4, 4))
    assert caught.value.reason == "SourceChanged"


def test_documents_of_one_number_in_two_sources_are_two(tmp_path):
    def write(folder: Path, _: int) -> None:
        (folder / "a.jsonl").write_bytes(jsonl_bytes(folder.name))

    mix = corpus(tmp_path, 2, "Jsonl", write, 0)
    data = LocalData(mix, open_store((tmp_path / "run").as_uri(), create=True))
    read = [bytes(data.tokens(Sequence(name, 0, 0, 0, 2, 3)).tolist()) for name in ("s0", "s1", "s0")]
    assert read == [b"s0", b"s1", b"s0"]


def test_where_a_file_system_states_no_size_a_spool_holds_more_than_one_block_at_a_time() -> None:
    """It took the disk for a full one: each block was read again for each of its samples."""
    assert Spool(Path("/proc")).budget >= 1 << 30
