"""Memory of a loader by the file: a source may have five million of them."""

from __future__ import annotations

import hashlib
import pickle
import tracemalloc
from collections.abc import Callable, Iterator

import msgspec
import pytest
import zstandard

from coxswain.config import MixConfig, SourceConfig, TokenizerConfig
from coxswain.index import BlockEntry, IndexedShare, fingerprint
from coxswain.packed import Packed
from coxswain.planlog import LoaderShare
from coxswain.uris import is_file
from coxswain_coordinator.index.merge import merge
from coxswain_coordinator.index.progress import IndexProgress
from coxswain_data.formats.object_reader import Sizes
from coxswain_data.indexer import messages
from coxswain_data.row_table import KEY, RowTable
from coxswain_data.source import Source
from coxswain_link.object_info import ObjectInfo
from coxswain_link.spool import Spool
from coxswain_link.store import open_store

FILES = 50_000
CONTENT = b'{"text": "a"}\n'


class Generated:
    """A folder of files of one line each."""

    uri, last_error = "file:///corpus", ""

    def corpus(self, wanted: object, may_hold: object) -> Iterator[ObjectInfo]:
        return (
            ObjectInfo(f"part-{n // 1000:05}/document-{n:09}.jsonl", len(CONTENT), f'"{n:x}-6-e"') for n in range(FILES)
        )

    def get_range(self, path: str, start: int, stop: int, etag: str = "") -> bytes:
        return CONTENT[start:stop]


def bytes_a_file(work: Callable[[], object]) -> tuple[float, float]:
    """What is kept, and the most that is held."""
    tracemalloc.start()
    try:
        kept = work()
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept is not None
    return held / FILES, most / FILES


def source_of(uri: str) -> SourceConfig:
    return SourceConfig(
        name="docs", source="docs", uri=uri, format="Jsonl", include="", text_field="text", weight=1,
        tokenizer=TokenizerConfig(kind="bytes"),
    )  # fmt: skip


def block(number: int) -> BlockEntry:
    key = hashlib.sha256(str(number).encode()).hexdigest()
    path = f"part-{number // 1000:05}/document-{number:09}.jsonl"
    return BlockEntry(path, 0, 0, 14, 14, key[:32], samples=1, tokens=2, key=key, shortest=2)


@pytest.mark.parametrize(("uri", "most"), [("file:///corpus", 140), ("s3://bucket/corpus", 45)])
def test_the_files_and_blocks_of_a_source_take_few_bytes_each(uri, most, tmp_path):
    """An object for each took 1,100 bytes: 5 GB for five million files."""
    source = Source(source_of(uri), Generated(), Spool(), Sizes())  # type: ignore[arg-type]
    source.keep_identities(open_store(tmp_path.as_uri()))
    kept, peak = bytes_a_file(lambda: (source, source.blocks()))
    saved_next = 500 if is_file(uri) else 30  # of files, up to 50,000 digests and their JSON
    assert kept < most
    assert peak < most + saved_next


def test_a_coordinator_holds_few_bytes_of_a_block():
    """Some 60 bytes of it in the parts of shares, and as many in the index that replaces them."""
    mix = MixConfig(name="m", seed=1, sources=(source_of("file:///corpus"),))
    progress = IndexProgress(mix)
    progress.shares = tuple(LoaderShare(f"loader-{n}", "docs", n, 2) for n in range(2))

    def work() -> object:
        for share in progress.shares:
            mine = Packed(map(block, range(share.share, FILES, 2)), BlockEntry)
            for part in messages(IndexedShare(share, mine, "hash", 257, 0), 5_000):
                progress.add(part)
        progress.finish(merge(mix, progress.parts()))
        return progress

    kept, peak = bytes_a_file(work)
    assert kept < 80
    assert peak < 240
    _, hashing = bytes_a_file(lambda: progress.index and progress.index.hash)
    assert hashing < 40


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 3000])
def test_a_fingerprint_that_is_made_in_pieces_is_that_of_the_whole(count):
    """Runs that were begun before have recorded it."""
    blocks = [block(number) for number in range(count)]
    whole = msgspec.json.encode([(b.key, b.samples, b.tokens) for b in blocks])
    assert fingerprint(iter(blocks)) == f"sha256:{hashlib.sha256(whole).hexdigest()}"


def test_a_packed_sequence_gives_what_went_in_by_place_and_by_slice():
    infos = [ObjectInfo(f"{n:04}", n, "e") for n in range(1000)]
    packed = Packed(iter(infos), ObjectInfo)
    assert packed == infos
    assert packed != infos[:-1]
    assert [packed[0], packed[255], packed[256], packed[-1]] == [infos[0], infos[255], infos[256], infos[-1]]
    for start, stop, step in [
        (0, 1000, 1),
        (10, 600, 1),
        (500, 512, 1),
        (3, None, 7),
        (256, 512, 1),
        (9, 2, 1),
        (None, None, -1),
    ]:
        assert packed[start:stop:step] == infos[start:stop:step]
    with pytest.raises(IndexError):
        packed[1000]
    assert list(Packed([], ObjectInfo)) == []
    assert pickle.loads(pickle.dumps(packed)) == packed  # for a spawned worker of a dataset


def test_items_that_are_drawn_by_turns_from_eight_places_are_unpacked_once(monkeypatch):
    """An order draws from eight blocks of a source at a time: unpacking some for each sample took longer than reading it."""
    packed = Packed((ObjectInfo(f"{n:05}", n, "e") for n in range(10_000)), ObjectInfo)
    made: list[object] = []
    decompressor = zstandard.ZstdDecompressor
    monkeypatch.setattr(zstandard, "ZstdDecompressor", lambda: made.append(None) or decompressor())
    drawn = [packed[place].size for _ in range(100) for place in range(0, 8_000, 1_000)]
    assert drawn == [*range(0, 8_000, 1_000)] * 100
    assert len(made) == 8


def test_of_a_packed_sequence_that_is_walked_by_place_few_items_stay_unpacked(monkeypatch):
    """Else a source would be in memory whole once each of its blocks was read."""
    packed = Packed((ObjectInfo(f"{n:05}", n, "e") for n in range(10_000)), ObjectInfo)
    made: list[object] = []
    decompressor = zstandard.ZstdDecompressor
    monkeypatch.setattr(zstandard, "ZstdDecompressor", lambda: made.append(None) or decompressor())
    assert len(list(packed)) == 10_000
    parts = len(made)  # each is unpacked once
    assert parts > 10
    made.clear()
    for _ in range(2):
        assert [packed[place].size for place in range(9_999, 0, -100)] == [*range(9_999, 0, -100)]
    assert len(made) == 2 * parts


def test_a_row_is_found_by_its_whole_key_alone():
    table = RowTable(KEY)
    first, second, absent = b"ab" + b"1" * 14, b"ab" + b"2" * 14, b"ab" + b"3" * 14
    table.add(first, absent)  # its row looks like a key of the same bucket
    table.add(second, first)
    table.add(second, second)
    assert [table.get(first), table.get(second), table.get(absent)] == [absent, first, None]
    assert len(table) == 2
    with pytest.raises(ValueError, match="key of 3 and row of 16 bytes"):
        table.add(b"key", first)
