"""Reading samples: every format with ordinary and with odd content."""

from __future__ import annotations

import gzip
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from coxswain.config import SourceConfig, TokenizerConfig
from coxswain.errors import Refused
from coxswain_data.formats import FORMATS
from coxswain_data.formats.base import Extent, Sample
from coxswain_data.formats.jsonl import JsonlObject
from coxswain_data.formats.object_reader import ObjectReader, Sizes
from coxswain_data.source import Source, include_pattern, may_hold, open_source
from coxswain_link.spool import Spool
from coxswain_link.store import ObjectInfo


def source(
    folder: Path,
    format_: str = "Jsonl",
    include: str = "**",
    sizes: Sizes | None = None,
    text_field: str = "text",
    **fields: object,
) -> Source:
    config = SourceConfig(
        name="mine", source="mine", uri=folder.as_uri(), format=format_, include=include, text_field=text_field,
        tokenizer=TokenizerConfig(kind="bytes"), weight=1, **fields,
    )  # fmt: skip
    return open_source(config, sizes=sizes)


def samples(mine: Source) -> list[tuple[str, int, str | None]]:
    """(path, offset in the object, text) of every sample."""
    return [(b.path, b.offset + s.at, s.text) for b in mine.blocks() for s in mine.read(b).samples()]


def texts(mine: Source) -> list[str | None]:
    return [text for _, _, text in samples(mine)]


def jsonl_bytes(*values: object) -> bytes:
    return b"".join(json.dumps({"text": v}).encode() + b"\n" for v in values)


# --- Jsonl ----------------------------------------------------------------------------------------------------------


def test_each_line_is_a_sample(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes("one", "zwei ü", "", "日本"))
    assert texts(source(tmp_path)) == ["one", "zwei ü", "", "日本"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"text": "good", "score": NaN}', "good"),
        (b'{"score": [-Infinity, {"x": NaN}], "text": "good"}', "good"),
        (b'{"text": NaN}', None),
        (b'{"text": "a", "score": nan}', None),
        (b'{"text": "half \\ud800"}', None),
        (b'{"text": "half \\ud800", "score": NaN}', None),
        (b'{"text": "good", "title": "cut \\ud83d"}', "good"),
        (b'{"text": "good", "title": "cut \\uD83D"}', "good"),
        (b'{"\\uDE00": 1, "text": "good \\ud83d\\ude00"}', "good \U0001f600"),
        (b'{"text": "good", "title": "cut \\ud83d"', None),
        ('{"text": "a", "score": NaN}'.encode("utf-16-le"), None),
        (b'{"text": "a", "x": ' + b"[" * 100_000, None),
        (b"[NaN]", None),
    ],
)
def test_what_only_python_writes_spoils_no_sample_in_whose_text_it_is_not(tmp_path, line, text):
    (tmp_path / "a.jsonl").write_bytes(line + b"\n")
    assert texts(source(tmp_path)) == [text]


def test_a_missing_newline_at_the_end_loses_nothing(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes("one", "two").rstrip())
    assert texts(source(tmp_path)) == ["one", "two"]


def test_blank_lines_carriage_returns_and_a_byte_order_mark_are_no_faults(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one"}\r\n\r\n  \n{"text": "two"}\r\n')
    assert texts(source(tmp_path)) == ["one", "two"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "\xff"}',
        b'{"text": null}',
        b'{"other": "x"}',
        b'{"text": 3}',
        b"[]",
        b'{"text": "cut',
        b'{"text": "\\ud800"}',
    ],
)
def test_a_line_that_does_not_decode_is_a_sample_without_text(tmp_path, line):
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes("one") + line + b"\n" + jsonl_bytes("two"))
    assert texts(source(tmp_path)) == ["one", None, "two"]


@pytest.mark.parametrize("size", [1, 7, 13, 14, 15, 64, 1000])
def test_ranges_of_any_size_give_each_line_once(tmp_path, size):
    lines = ["x" * n for n in (0, 1, 2, 40, 3, 0, 90, 1)]
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes(*lines))
    assert texts(source(tmp_path, sizes=Sizes(jsonl_block=size, jsonl_ahead=5))) == lines


class Memory:
    """A store of one object."""

    uri = "memory://"

    def __init__(self, data: bytes) -> None:
        self.data = data

    def get_range(self, key: str, start: int, stop: int, etag: str) -> bytes:
        return self.data[start:stop]


def reader(store: Memory, sizes: Sizes, name: str = "a.jsonl") -> ObjectReader:
    info = ObjectInfo(name, len(store.data), "")
    return ObjectReader(store, info, Spool(), lambda path, how: Refused("SourceChanged", how), sizes)  # type: ignore[arg-type]


@given(
    lines=st.lists(st.text(max_size=20), max_size=12),
    size=st.integers(1, 50),
    ahead=st.integers(1, 9),
    end=st.booleans(),
)
def test_any_cut_into_ranges_gives_each_line_once_and_at_its_place(lines, size, ahead, end):
    data = jsonl_bytes(*lines) if end else jsonl_bytes(*lines)[:-1]
    opened = JsonlObject(reader(Memory(data), Sizes(jsonl_block=size, jsonl_ahead=ahead)), "text")
    blocks = [opened.read(extent) for extent in opened.extents()]
    assert [s.text for b in blocks for s in b.samples()] == lines
    assert [b.text(s.at) for b in blocks for s in b.samples()] == lines


def test_a_sample_is_found_again_at_its_place(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes(*(f"line {i}" for i in range(20))))
    mine = source(tmp_path, sizes=Sizes(jsonl_block=50))
    found = [mine.read(b).text(s.at) for b in mine.blocks() for s in mine.read(b).samples()]
    assert found == [f"line {i}" for i in range(20)]


def test_an_empty_file_has_no_block_and_beside_others_does_no_harm(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "b.jsonl").write_bytes(jsonl_bytes("one"))
    assert texts(source(tmp_path)) == ["one"]


def test_a_line_beyond_the_limit_is_refused_by_name(tmp_path):
    (tmp_path / "long.jsonl").write_bytes(jsonl_bytes("x" * (3 << 20)))
    with pytest.raises(Refused, match=r"long\.jsonl") as caught:
        samples(source(tmp_path, sizes=Sizes(jsonl_block=16, document=1 << 20)))
    assert caught.value.reason == "ObjectTooLarge"


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_a_line_beyond_the_limit_is_refused_by_its_place_also_in_a_packed_object(tmp_path, name):
    pack = {"l": bytes, "z": gzip.compress, "t": zstandard.ZstdCompressor().compress}[name[-1]]
    lines, limit = jsonl_bytes("one", "x" * (1 << 20)), (1 << 20) + len(jsonl_bytes("")) - 1
    (tmp_path / name).write_bytes(pack(lines))
    assert len(texts(source(tmp_path, sizes=Sizes(document=limit)))) == 2
    with pytest.raises(Refused, match=rf"{name}: the line at byte 16 is longer than 1 MiB; one line must") as caught:
        samples(source(tmp_path, sizes=Sizes(document=limit - 1)))
    assert caught.value.reason == "ObjectTooLarge"


def test_a_line_that_is_as_long_as_the_limit_may_go_on_behind_its_range_and_one_beyond_is_refused_by_its_place(
    tmp_path,
):
    lines = jsonl_bytes("one", "two", "x" * 50)
    (tmp_path / "a.jsonl").write_bytes(lines)
    long = len(lines) - 2 * len(jsonl_bytes("one")) - 1
    block = 2 * len(jsonl_bytes("one")) + long  # the line break alone is behind it
    assert len(texts(source(tmp_path, sizes=Sizes(jsonl_block=block, document=block)))) == 3
    with pytest.raises(Refused, match=r"a\.jsonl: the line at byte 32 is longer than"):
        samples(source(tmp_path, sizes=Sizes(jsonl_block=20, jsonl_ahead=99, document=long - 1)))


# --- compressed -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gz", "zst"])
def test_a_compressed_object_is_one_block_with_the_same_samples(tmp_path, pack):
    name = "a.jsonl.gz" if pack is gzip.compress else "a.jsonl.zst"
    (tmp_path / name).write_bytes(pack(jsonl_bytes("one")) + pack(jsonl_bytes("two", "three")))
    mine = source(tmp_path)
    assert len(mine.blocks()) == 1
    assert texts(mine) == ["one", "two", "three"]


def test_frames_that_end_where_a_read_ends_lose_nothing_behind_them(tmp_path):
    """The first frame has a power of two of bytes, as any read."""
    skipped = (0x184D2A50).to_bytes(4, "little") + ((1 << 20) - 8).to_bytes(4, "little") + bytes((1 << 20) - 8)
    packed = map(zstandard.ZstdCompressor().compress, (jsonl_bytes("one"), jsonl_bytes("two")))
    (tmp_path / "a.jsonl.zst").write_bytes(skipped.join([b"", *packed]))
    assert texts(source(tmp_path)) == ["one", "two"]


def test_an_object_that_was_packed_with_a_large_window_is_refused_with_what_helps(tmp_path):
    """As by `zstd --long=28`: another upload of the same would be refused, too."""
    window = zstandard.ZstdCompressionParameters(window_log=28)
    packing = zstandard.ZstdCompressor(compression_params=window).compressobj()
    (tmp_path / "a.jsonl.zst").write_bytes(packing.compress(jsonl_bytes("one")) + packing.flush())
    with pytest.raises(Refused, match=r"a\.jsonl\.zst cannot .*; pack it again with a window of at most 128 MiB"):
        samples(source(tmp_path))


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
@pytest.mark.parametrize("harm", ["truncated", "garbage", "empty", "no stream"])
def test_a_corrupt_archive_is_refused_by_name(tmp_path, name, harm):
    data = (gzip.compress if name.endswith("gz") else zstandard.ZstdCompressor().compress)(jsonl_bytes(*range(500)))
    harmed = {
        "truncated": data[:-20], "garbage": b"not an archive" * 9, "empty": b"", "no stream": data[:10] + b"\xff" * 99,
    }  # fmt: skip
    (tmp_path / name).write_bytes(harmed[harm])
    with pytest.raises(Refused, match=name) as caught:
        samples(source(tmp_path))
    assert caught.value.reason == "ObjectUnreadable"


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_an_archive_that_unpacks_to_more_than_the_limit_is_refused(tmp_path, name):
    data = (gzip.compress if name.endswith("gz") else zstandard.ZstdCompressor().compress)(b"0" * (3 << 20))
    (tmp_path / name).write_bytes(data)
    with pytest.raises(Refused, match="can only be read whole"):
        samples(source(tmp_path, sizes=Sizes(unpacked=1 << 20)))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_an_object_that_is_as_large_as_the_limit_is_read(tmp_path, name):
    data = {"l": bytes, "z": gzip.compress, "t": zstandard.ZstdCompressor().compress}[name[-1]](jsonl_bytes("one"))
    (tmp_path / name).write_bytes(data)
    limit = len(jsonl_bytes("one"))
    assert texts(source(tmp_path, "Text", sizes=Sizes(document=limit))) == [jsonl_bytes("one").decode()]
    with pytest.raises(Refused, match="can only be read whole"):
        samples(source(tmp_path, "Text", sizes=Sizes(document=limit - 1)))


# --- Text -----------------------------------------------------------------------------------------------------------


def test_an_object_of_text_is_one_sample(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("drei ü".encode()))
    assert texts(source(tmp_path, "Text")) == ["one\ntwo\n", "drei ü"]


def test_text_that_is_not_utf8_is_a_sample_without_text(tmp_path):
    (tmp_path / "a.txt").write_bytes("grün".encode("latin-1"))
    assert texts(source(tmp_path, "Text")) == [None]


# --- sources --------------------------------------------------------------------------------------------------------


def test_blocks_come_by_path_and_then_by_place(tmp_path):
    for name in ("b/1.jsonl", "a.jsonl", "b.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(jsonl_bytes("12345678"))
    blocks = source(tmp_path, sizes=Sizes(jsonl_block=10)).blocks()
    assert blocks == sorted(blocks)
    assert [(b.path, b.ordinal) for b in blocks][1:4] == [("a.jsonl", 1), ("a.jsonl", 2), ("b.jsonl", 0)]


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("**/*.parquet", "a.parquet", True), ("**/*.parquet", "x/y/a.parquet", True), ("*.parquet", "x/a.parquet", False),
        ("x/*.jsonl", "x/a.jsonl", True), ("x/**", "x/y/z", True), ("", "any/thing", True), ("a?.txt", "ab.txt", True),
        ("a?.txt", "a/.txt", False), ("a.txt", "abtxt", False),
    ],
)  # fmt: skip
def test_include_is_a_glob_over_relative_paths(glob, path, matches):
    assert bool(include_pattern(glob).fullmatch(path)) is matches


def test_include_matches_what_a_search_with_every_second_try_matches():
    """All globs of up to four of these parts, on all paths of up to five characters."""
    plain = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "a": "a", "b/": "b/"}
    paths = ["".join(path) for length in range(6) for path in product("ab/", repeat=length)]
    for parts in (parts for number in range(1, 5) for parts in product(plain, repeat=number)):
        glob = "".join(parts)
        tokens = re.findall(r"\*\*/|\*\*|b/|.", glob)
        every = re.compile("".join(plain.get(token, token) for token in tokens))
        found, wanted = ([p for p in paths if pattern.fullmatch(p)] for pattern in (include_pattern(glob), every))
        assert found == wanted, glob


@pytest.mark.parametrize(
    ("glob", "may", "may_not"),
    [
        ("", ("a", "a/b"), ()),
        ("*.jsonl", (), ("a", "a/b")),
        ("a/*.jsonl", ("a",), ("b", "a/b", "aa")),
        ("*/b/*", ("a", "c", "a/b"), ("a/c", "a/b/c")),
        ("a/**/*.txt", ("a", "a/b/c"), ("b", "b/a")),
        ("a?/x**.txt", ("ab", "ab/c", "ab/c/d"), ("a", "abc")),
        ("**/*.txt", ("a", "a/b"), ()),
    ],
)
def test_a_folder_may_hold_what_a_glob_takes(glob: str, may: tuple[str, ...], may_not: tuple[str, ...]) -> None:
    assert [folder for folder in (*may, *may_not) if may_hold(glob, folder)] == list(may)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("glob", ["*a*a*a*a*a*.x", "**a**a**a**a**a**.x", "**/*a?*a*a*a*a*.x"])
def test_an_include_of_many_stars_takes_no_longer_on_a_name_that_it_does_not_match(glob):
    assert include_pattern(glob).fullmatch("a/" * 20 + "a" * 200) is None


def test_a_uri_that_does_not_exist_is_refused_by_name(tmp_path):
    with pytest.raises(Refused, match="nowhere") as caught:
        source(tmp_path / "nowhere")
    assert caught.value.reason == "SourceNotFound"


def test_a_uri_that_is_a_file_is_not_said_to_be_missing(tmp_path):
    (tmp_path / "a b.jsonl").write_text("{}")
    with pytest.raises(
        Refused, match=r"jsonl' is a file, not a folder; .* to its folder, with `include: a b\.jsonl`"
    ) as caught:
        source(tmp_path / "a b.jsonl")
    assert caught.value.reason == "SourceNotFound"


def test_an_empty_folder_is_not_said_to_hold_what_no_include_takes(tmp_path):
    with pytest.raises(
        Refused, match="no object is below this uri, which names a folder; correct it, or bring"
    ) as caught:
        source(tmp_path).blocks()
    assert caught.value.reason == "SourceEmpty"


def test_a_source_without_a_matching_object_is_empty(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(Refused, match=r"none matches include '\*\.jsonl'") as caught:
        source(tmp_path, include="*.jsonl").blocks()
    assert caught.value.reason == "SourceEmpty"


def test_a_format_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    with pytest.raises(Refused, match="Parquet, Jsonl, Text, Tar, TokenBin") as caught:
        source(tmp_path, "Csv")
    assert caught.value.reason == "FormatNotSupported"


def test_a_file_that_is_replaced_is_read_as_it_is_now_once_it_is_listed_again(tmp_path):
    """As by a loader that indexes for a new coordinator."""
    mine = source(tmp_path, "Text")
    for content in ("first", "second one"):
        (tmp_path / "new").write_text(content)
        (tmp_path / "new").rename(tmp_path / "a.txt")
        assert texts(mine) == [content]


@pytest.mark.parametrize("harm", ["rewritten", "gone"])
def test_content_that_changed_after_indexing_is_refused_by_name(tmp_path, harm):
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl_bytes("one"))
    mine = source(tmp_path)
    block = mine.blocks()[0]
    assert list(mine.read(block).samples()) == [Sample(0, "one")]
    path.unlink()
    if harm == "rewritten":
        path.write_bytes(jsonl_bytes("two"))
    with pytest.raises(Refused, match=r"a\.jsonl") as caught:
        mine.read(block)
    assert caught.value.reason == "SourceChanged"


class Meeting:
    """A format in which two threads that read at a time meet."""

    def __init__(self) -> None:
        self.barrier, self.met = threading.Barrier(1), False

    def __call__(self, reader: ObjectReader, text_field: str) -> Meeting:
        return self

    def extents(self) -> list[Extent]:
        self.read(Extent(0, 0, 1))
        return [Extent(0, 0, 1)]

    def read(self, extent: Extent) -> Any:
        with suppress(threading.BrokenBarrierError):
            self.barrier.wait(0.2)
            self.met = self.barrier.parties == 2


def test_one_thread_at_a_time_reads_the_open_objects_of_a_source(tmp_path, monkeypatch):
    """An open Parquet file has one place, and a loader may list for a new coordinator while it serves."""
    (tmp_path / "a").write_bytes(b"x")
    meeting = Meeting()
    monkeypatch.setitem(FORMATS, "Parquet", meeting)
    mine = source(tmp_path, "Parquet")
    (entry,) = mine.blocks()
    meeting.barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        [done.result(20) for done in (pool.submit(mine.blocks), pool.submit(mine.read, entry))]
    assert not meeting.met
